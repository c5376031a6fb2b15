"""CoNLL-U treebanks of the archives: sentences of words with their places in the text, single words, and relations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

from recipes.passages.documents import archives_folder, read_archive

from poolbench.errors import CorpusError
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, Span, word_type

ARCHIVE = "parsing"
T = TypeVar("T")
_SPLIT = re.compile(r"-(train|dev|test)\.conllu$")
_COMMENTS = ("newdoc id", "sent_id", "text")  # GUM's other comments hold summaries, which are not part of the treebank


@dataclass(frozen=True)
class Word:
    """A syntactic word; `head` is an index in the sentence, -1 for the root."""

    form: str
    lemma: str
    upos: str
    xpos: str
    features: Mapping[str, str]
    head: int
    deprel: str
    misc: Mapping[str, str]
    start: int
    end: int


@dataclass(frozen=True)
class Sentence:
    """A sentence of a document."""

    id: str
    document: str
    text: str
    words: tuple[Word, ...]
    split: str | None  # from the name of its file

    def span(self, start: int, end: int | None = None) -> Span:
        """Return the range of words from `start` up to `end`, which is left out; one word by default."""
        last = self.words[start if end is None else end - 1]
        return Span(self.text, self.words[start].start, last.end)

    def root(self) -> int:
        """Return the index of the root, -1 without one."""
        return next((index for index, word in enumerate(self.words) if word.head < 0), -1)

    def children(self, head: int, *relations: str) -> list[int]:
        """Return the words below a word, in order; of the given relations only, if there are any."""
        below = [index for index, word in enumerate(self.words) if word.head == head]
        return [index for index in below if not relations or self.words[index].deprel in relations]

    def subtree(self, head: int) -> list[int]:
        """Return a word and all words below it, in order."""
        indices = [head]
        for index in indices:  # grows while it is read; heads form a tree, so that no word is found twice
            indices += self.children(index)
        return sorted(indices)


@dataclass(frozen=True)
class Treebank:
    """The sentences of a treebank, and how many were left out because their words do not make their text."""

    name: str
    sentences: tuple[Sentence, ...]
    unplaced: int

    def notes(self) -> Iterator[Note]:
        """Yield a note on what was left out."""
        if self.unplaced:
            yield Note(self.name, f"{self.unplaced} sentences whose words do not make their text are left out")

    def documents(self) -> Iterator[tuple[Sentence, ...]]:
        """Yield the sentences of each document."""
        by_document: dict[str, list[Sentence]] = {}
        for sentence in self.sentences:
            by_document.setdefault(sentence.document, []).append(sentence)
        yield from map(tuple, by_document.values())


def some(items: Sequence[T], number: int, seed: str) -> list[T]:
    """Return at most so many of the items, in their order; other seeds choose others."""
    if len(items) <= number:
        return list(items)
    return [items[index] for index in sorted(Random(seed).sample(range(len(items)), number))]


def read_treebank(archives: str | Path | None, prefix: str) -> Treebank:
    """Return the treebank whose files are below a folder of the archive. Raise CorpusError if there are none."""
    return _read_treebank(str(archives_folder(archives)), prefix.rstrip("/") + "/")


@cache
def _read_treebank(folder: str, prefix: str) -> Treebank:
    files = read_archive(folder, ARCHIVE)
    names = [name for name in files if name.startswith(prefix) and name.endswith(".conllu")]
    if not names:
        raise CorpusError(f"archive {ARCHIVE!r} in {folder} holds no treebank below {prefix!r}")
    candidates = [sentence for name in names for sentence in parse_conllu(files[name].decode("utf-8"), name)]
    sentences = tuple(sentence for sentence in candidates if sentence is not None)
    return Treebank(prefix, sentences, len(candidates) - len(sentences))


def parse_conllu(text: str, name: str) -> Iterator[Sentence | None]:
    """Yield the sentences of a file; None for one whose words do not make its text. Empty nodes are left out."""
    match = _SPLIT.search(name)
    about: dict[str, str] = {}
    rows: list[list[str]] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            if key.strip() in _COMMENTS:
                about[key.strip()] = value.strip()
        elif line:
            rows.append(line.split("\t"))
        elif rows:
            words = _words([row for row in rows if row[0].isdigit()], about["text"])
            document = about.get("newdoc id", name)
            yield Sentence(about["sent_id"], document, about["text"], words, match and match[1]) if words else None
            rows = []


def _words(rows: Sequence[Sequence[str]], text: str) -> tuple[Word, ...]:
    """Place words in the text of their sentence; return none if one cannot be placed.

    The parts of a multiword token, such as `do` and `n't`, follow each other in the text.
    """
    position, words = 0, []
    for row in rows:
        start = text.find(row[1], position)
        if start < 0 or text[position:start].strip():
            return ()
        position = start + len(row[1])
        features, misc = _values(row[5]), _values(row[9])
        words.append(Word(row[1], row[2], row[3], row[4], features, int(row[6]) - 1, row[7], misc, start, position))
    return tuple(words)


def _values(cell: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in cell.split("|")) if cell != "_" else {}


_MAX_WORDS = 60  # of a sentence


def read_words(
    definition: ProbingSet,
    archives: Path | None,
    *,
    treebank: str,
    label: Literal["upos", "xpos", "deprel"],
    sentences: int,
) -> Iterator[Sample | Note]:
    """Yield one span per word with its tag or its relation to its head, or per word and head for pairs of spans.

    Args:
        sentences: How many sentences are read: the same for all labels, so that their sets share texts.
    """
    bank = read_treebank(archives, treebank)
    yield from bank.notes()
    short = [sentence for sentence in bank.sentences if len(sentence.words) <= _MAX_WORDS]
    for sentence in some(short, sentences, treebank):
        yield from _samples(sentence, label, pairs=definition.input == "span_pair")


def _samples(sentence: Sentence, label: str, *, pairs: bool) -> Iterator[Sample]:
    for index, word in enumerate(sentence.words):
        span = sentence.span(index)
        if pairs and word.head < 0:
            continue
        yield Sample(
            f"{sentence.id}/{index + 1}",
            (span,),
            (sentence.span(word.head),) if pairs else (),
            label=getattr(word, label),
            split=sentence.split,
            group=sentence.id,
            word=word_type(span),
            where=sentence.id,
        )
