"""Annotation of texts by a spaCy pipeline."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from poolbench.cancellation import check_cancelled
from poolbench.config import asset_path
from poolbench.errors import CellError, ConfigError, InputError, UnknownNameError
from poolbench.pooling.relations import to_universal
from poolbench_pooler.config import MAX_CHARACTERS, PACKAGED_PIPELINES, SHIPPED_PIPELINE
from poolbench_pooler.keywords import DocumentFrequencies, flag_keywords

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

CLAUSAL = frozenset({"root", "advcl", "acl", "ccomp", "csubj", "parataxis"})
PREDICATE_TAGS = frozenset({"VERB", "AUX"})
OF_PREDICATES = frozenset({"nsubj", "csubj", "cop"})
#: Texts that go through the pipeline together: 8 to 128 are equally fast, a single one is 20 % slower. A request waits
#: for one batch of a task, so it is the smallest of these.
BATCH_SIZE = 8
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
NEEDED = ("parser", "ner")


#: Annotation columns of one text, all of length W; keywords apart, which depend on other texts too.
Columns = dict[str, list[Any]]

#: Yields the columns of texts, in order; takes the pipeline, the texts and what messages call them.
Parser = Callable[["Pipeline", Sequence[str], Sequence[str]], Iterator[Columns]]

#: Words that are kept: about 1,300 passages of the card's length, and some 60 MB.
MAX_WORDS = 500_000


def segment_clauses(head: Sequence[int], dep: Sequence[str], upos: Sequence[str]) -> list[int]:
    """Number the clauses of a passage in order of their first word.

    A word *heads a clause* if its relation is `root`, `advcl`, `acl` (relative clauses included), `ccomp`, `csubj` or
    `parataxis`. A `conj` heads a clause if it is a predicate itself: a VERB or AUX, or a word with its own subject or
    copula. Open complements (`xcomp`) share their subject and stay in the clause above. Every other word belongs to the
    clause of its nearest ancestor that heads a clause. A clause may therefore be interrupted: *the man [who left] was
    old* is two clauses, the first in two pieces.

    Args:
        head: Index of each word's head, [W]. A root is its own head.
        dep: Relation of each word to its head, UD or ClearNLP, [W].
        upos: Universal part of speech, [W].

    Returns:
        The clause of each word, [W], from 0.

    Raises:
        CellError: A label belongs to no known scheme.
    """
    relations = [to_universal(label) for label in dep]
    governs = {h for h, relation in zip(head, relations, strict=True) if relation in OF_PREDICATES}
    heads_clause = [
        head[i] == i or relation in CLAUSAL or (relation == "conj" and (upos[i] in PREDICATE_TAGS or i in governs))
        for i, relation in enumerate(relations)
    ]
    numbers: dict[int, int] = {}
    return [numbers.setdefault(_clause_head(i, head, heads_clause), len(numbers)) for i in range(len(head))]


def _clause_head(word: int, head: Sequence[int], heads_clause: Sequence[bool]) -> int:
    while not heads_clause[word]:
        word = head[word]
    return word


class ParseCache:
    """Cache of parsed texts with up to `max_words` words in total.

    If the cache is full, the least recently used text is dropped.
    """

    def __init__(self, max_words: int = MAX_WORDS) -> None:
        # A text without words also takes space.
        self._known: LRUCache[bytes, Columns] = LRUCache(max_words, lambda columns: 1 + len(columns["word_start"]))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, text: str) -> Columns | None:
        """Return the annotation columns of a text, or None if the text is not in the cache."""
        return self._known.get(_digest(text))

    def put(self, text: str, columns: Columns) -> None:
        """Store the annotation columns of a text. A text that is larger than the whole cache is not stored."""
        with suppress(ValueError):
            self._known[_digest(text)] = columns


def _digest(text: str) -> bytes:
    # A text that is not valid Unicode is refused later, with its name.
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


@dataclass(frozen=True)
class Pipeline:
    """A loaded spaCy pipeline, with its name, version and scheme of dependency labels."""

    name: str
    version: str
    dep_scheme: str
    nlp: Language
    cache: ParseCache = field(default_factory=ParseCache, repr=False, compare=False)

    def require_version(self, version: str | None) -> Pipeline:
        """Return the pipeline. Raise ConfigError if another version of it is requested."""
        if version not in (None, self.version):
            raise ConfigError(
                f"pipeline {self.name!r} has version {self.version}, not {version}. If it was replaced "
                f"while the cluster ran, restart the cluster; else install that version, or ask for {self.version}"
            )
        return self

    def describe(self) -> dict[str, str]:
        """Return the pipeline's name, version and label scheme, for the metadata of annotations."""
        return {"pipeline": self.name, "pipeline_version": self.version, "dep_scheme": self.dep_scheme}


@lru_cache(maxsize=2)
def load_pipeline(name: str) -> Pipeline:
    """Load the shipped pipeline, or an installed pipeline of `PACKAGED_PIPELINES`.

    Other names are refused, because spaCy would load any folder and any installed module.

    Raises:
        UnknownNameError: The name is not allowed. The error lists the allowed names.
        ConfigError: The package is not installed, or the pipeline lacks a parser, an entity recogniser, or
            labels of a known scheme.
    """
    import spacy

    if name not in (SHIPPED_PIPELINE, *PACKAGED_PIPELINES):
        raise UnknownNameError("pipeline", name, (SHIPPED_PIPELINE, *PACKAGED_PIPELINES))
    if name == SHIPPED_PIPELINE:
        nlp = spacy.load(asset_path(name))
    elif spacy.util.is_package(name):
        nlp = spacy.load(name)
    else:
        raise ConfigError(f"spaCy pipeline {name!r} is not installed; install the package, or use 'annotator'")
    absent = [component for component in NEEDED if component not in nlp.pipe_names]
    if absent:
        raise ConfigError(f"spaCy pipeline {name!r} has no {' and no '.join(absent)}; it has {nlp.pipe_names}")
    nlp.max_length = max(nlp.max_length, MAX_CHARACTERS)
    return Pipeline(name, nlp.meta["version"], dep_scheme(nlp.pipe_labels["parser"]), nlp)


def dep_scheme(labels: Sequence[str]) -> str:
    """Return the scheme of dependency labels: `ud` (Universal Dependencies) or `clearnlp`.

    Each scheme has labels that the other lacks. Raise ConfigError if the scheme is neither of them.
    """
    try:
        for label in labels:
            to_universal(label)
    except CellError as error:
        raise ConfigError(f"{error}; its clauses and modifiers cannot be determined") from None
    bases = {label.partition(":")[0] for label in labels}
    if {"prep", "pobj"} <= bases:
        return "clearnlp"
    if {"case", "obl"} <= bases:
        return "ud"
    raise ConfigError(f"the parser's labels {sorted(bases)} are neither UD (case, obl) nor ClearNLP (prep, pobj)")


@dataclass(frozen=True)
class TokenizedText:
    """Words of a text: a spaCy document without white space, and the character at which each word starts."""

    doc: Doc
    starts: list[int]

    @property
    def words(self) -> list[str]:
        """Return the surface forms."""
        return [token.text for token in self.doc]


def check_text(text: str, what: str) -> None:
    """Raise InputError if the text is too long or is not valid Unicode."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{what} has {len(text)} characters; the limit is {MAX_CHARACTERS}: split it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid Unicode: {error.reason} at character {error.start}") from None


def tokenize(nlp: Language, text: str, what: str = "the text") -> TokenizedText:
    """Split a text into words. White space is never a word.

    The pipeline's training data has no white-space tokens, so these tokens are removed before the pipeline runs. A
    blank line is passed to the parser as a sentence boundary.

    Raises:
        InputError: The text is too long or is not valid Unicode.
    """
    from spacy.tokens import Doc

    check_cancelled()
    check_text(text, what)
    tokens = [token for token in nlp.tokenizer(text) if not token.is_space]
    starts = [token.idx for token in tokens]
    ends = [token.idx + len(token.text) for token in tokens]
    gaps = [text[end:start] for end, start in zip(ends, [*starts[1:], len(text)], strict=False)]
    before = ["\n\n", *gaps[:-1]][: len(tokens)]
    doc = Doc(
        nlp.vocab,
        words=[token.text for token in tokens],
        spaces=[bool(gap) for gap in gaps],
        sent_starts=[True if BLANK_LINE.search(gap) else None for gap in before],
    )
    return TokenizedText(doc, starts)


def annotate_texts(
    pipeline: Pipeline,
    names: Sequence[str],
    texts: Sequence[str],
    frequencies: DocumentFrequencies | None,
    num_keywords: int,
    parser: Parser | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one ANNOTATIONS row per text, in order.

    Args:
        texts: One text per name. An empty text gives a row without words. Texts in the cache are not parsed again.
        frequencies: Document frequencies for the keywords. If None, the column `keyword` is null.
        parser: Function that parses the texts that are not in the cache. The default is `parse`.
    """
    columns_by_text = {text: columns for text in texts if (columns := pipeline.cache.get(text)) is not None}
    fresh = {text: f"passage {name!r}" for name, text in zip(names, texts, strict=True) if text not in columns_by_text}
    parses = (parser or parse)(pipeline, list(fresh), list(fresh.values()))
    for name, text in zip(names, texts, strict=True):
        if text not in columns_by_text:
            columns_by_text[text] = next(parses)
            pipeline.cache.put(text, columns_by_text[text])
        columns = columns_by_text[text]
        words = [text[start:end] for start, end in zip(columns["word_start"], columns["word_end"], strict=True)]
        keyword = None if frequencies is None else flag_keywords(words, frequencies, num_keywords)
        yield {"passage_id": name, **columns, "keyword": keyword}


def parse(
    pipeline: Pipeline, texts: Sequence[str], names: Sequence[str] | None = None, *, batch_size: int = BATCH_SIZE
) -> Iterator[Columns]:
    """Yield the annotation columns of each text in order, without keywords.

    Args:
        texts: Texts to parse. All texts are checked before the first text is parsed.
        batch_size: Number of texts that the pipeline parses together. It changes speed, never results.
    """
    called = names or ["the text"] * len(texts)
    tokens = [tokenize(pipeline.nlp, text, name) for text, name in zip(texts, called, strict=True)]
    docs = pipeline.nlp.pipe((item.doc for item in tokens), batch_size=batch_size)
    for item, doc in zip(tokens, docs, strict=True):
        check_cancelled()
        yield _columns(doc, item.starts)


def _columns(doc: Doc, starts: list[int]) -> Columns:
    head = [token.head.i for token in doc]
    upos = [token.pos_ or "X" for token in doc]
    dep = ["root" if token.dep_ == "ROOT" else token.dep_ for token in doc]
    return {
        "word_start": starts,
        "word_end": [start + len(token.text) for start, token in zip(starts, doc, strict=True)],
        "upos": upos,
        "dep": dep,
        "head": head,
        "lemma": [token.lemma_ or token.lower_ for token in doc],
        "entity": [token.ent_type_ for token in doc],
        "sentence": [index for index, sentence in enumerate(doc.sents) for _ in sentence] if len(doc) else [],
        "clause": segment_clauses(head, dep, upos),
    }
