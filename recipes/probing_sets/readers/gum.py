"""GUM: mentions of entities, their coreference and bridging, and relations between arguments of discourse."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.passages.documents import archives_folder, read_archive
from recipes.probing_sets.readers.treebank import ARCHIVE, Sentence, read_treebank, some

from poolbench.errors import CorpusError
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, Span, whole, word_type

TREEBANK, RELATIONS = "gum/conllu", "gum/pdtb_rels/"
# `(19-person-new-...` opens a mention, `19)` closes it, and `)` alone closes one that was opened at the same word.
# A part of a discontinuous mention has its number in brackets, and is not a mention here.
_BRACKET = re.compile(r"\((\d+)(\[[^\]]*\])?-([a-z]+)[^()]*?(?=[()]|$)|(\d+)(?:\[[^\]]*\])?\)|\)")
_MAX_WORDS = 10  # of a mention


@dataclass(frozen=True)
class Mention:
    """A mention of an entity in a sentence."""

    entity: str  # number in the document
    kind: str  # type of entity
    place: tuple[int, int, int]  # number of the sentence, first word, word after the last
    span: Span
    where: str


def mentions(document: Sequence[Sentence]) -> list[Mention]:
    """Return the mentions of a document by their start; the longer first where two start together."""
    all_mentions = [mention for number, sentence in enumerate(document) for mention in _of_sentence(number, sentence)]
    return sorted(all_mentions, key=lambda mention: (*mention.place[:2], -mention.place[2]))


def _of_sentence(number: int, sentence: Sentence) -> Iterator[Mention]:
    pending: list[tuple[str, int, str]] = []
    for index, word in enumerate(sentence.words):
        for match in _BRACKET.finditer(word.misc.get("Entity", "")):
            if match[1]:
                pending.append((match[1], index, "" if match[2] else match[3]))
                continue
            opened = next((bracket for bracket in reversed(pending) if match[4] in (None, bracket[0])), None)
            if opened is None:
                continue
            pending.remove(opened)
            entity, start, kind = opened
            if kind and index + 1 - start <= _MAX_WORDS:
                yield Mention(entity, kind, (number, start, index + 1), sentence.span(start, index + 1), sentence.id)


def read_entities(definition: ProbingSet, archives: Path | None, *, per_document: int) -> Iterator[Sample | Note]:
    """Yield mentions with the type of their entity, at most so many of each document."""
    for name, document in _documents(archives):
        for number, mention in enumerate(some(mentions(document), per_document, name)):
            yield Sample(
                f"{name}/{number}",
                (mention.span,),
                label=mention.kind,
                group=name,
                word=word_type(mention.span),
                where=mention.where,
            )


def read_coreference(definition: ProbingSet, archives: Path | None, *, per_document: int) -> Iterator[Sample | Note]:
    """Yield mentions with the last mention of the same entity, and with that of another one of the same type."""
    for name, document in _documents(archives):
        pairs = []
        last: dict[str, Mention] = {}
        for mention in mentions(document):
            same = last.get(mention.entity)
            others = [
                candidate
                for candidate in last.values()
                if candidate.entity != mention.entity and candidate.kind == mention.kind
            ]
            if same and (other := _nearest(others, mention)):
                pairs.append((same, other, mention))
            last[mention.entity] = mention
        yield from _pairs(some(pairs, per_document, name), name, ("coreferent", "other"))


def read_bridging(definition: ProbingSet, archives: Path | None) -> Iterator[Sample | Note]:
    """Yield first mentions with the mention that they bridge to, and with the nearest mention of another entity."""
    for name, document in _documents(archives):
        pairs = []
        links = _bridges(document)
        last: dict[str, Mention] = {}
        for mention in mentions(document):
            anchors = links.get(mention.entity, set()) if mention.entity not in last else set()
            anchor = _nearest([last[entity] for entity in sorted(anchors) if entity in last], mention)
            others = [candidate for candidate in last.values() if candidate.entity not in anchors]
            if anchor and (other := _nearest(others, mention)):
                pairs.append((anchor, other, mention))
            last[mention.entity] = mention
        yield from _pairs(pairs, name, ("bridging", "other"))


def _bridges(document: Sequence[Sentence]) -> dict[str, set[str]]:
    """Return the anchors of each entity: `Bridge=89<94` says that 94 bridges to 89."""
    links: dict[str, set[str]] = {}
    for word in (word for sentence in document for word in sentence.words):
        for link in filter(None, word.misc.get("Bridge", "").split(",")):
            anchor, _, entity = link.partition("<")
            links.setdefault(entity, set()).add(anchor)
    return links


def _nearest(candidates: Sequence[Mention], mention: Mention) -> Mention | None:
    """Return the last of the mentions that end before another one starts."""
    before = [other for other in candidates if (other.place[0], other.place[2]) <= mention.place[:2]]
    return max(before, key=lambda other: other.place, default=None)


def _pairs(
    pairs: Sequence[tuple[Mention, Mention, Mention]], document: str, labels: tuple[str, str]
) -> Iterator[Sample]:
    for number, (*firsts, second) in enumerate(pairs):
        for first, label in zip(firsts, labels, strict=True):
            name = f"{document}/{number}-{label}"
            yield Sample(name, (first.span,), (second.span,), label=label, group=document, where=second.where)


def _documents(archives: Path | None) -> Iterator[tuple[str, tuple[Sentence, ...]]]:
    for document in read_treebank(archives, TREEBANK).documents():
        yield document[0].document, document


def read_relations(definition: ProbingSet, archives: Path | None, *, kind: str) -> Iterator[Sample | Note]:
    """Yield both arguments of a relation with its class (the first part of its label), of one kind such as implicit."""
    for name, row, units in _relations(archives, kind):
        yield Sample(name, whole(units[0]), whole(units[1]), label=row["label"].split(".")[0], group=row["doc"])


def read_order(definition: ProbingSet, archives: Path | None, *, kind: str) -> Iterator[Sample | Note]:
    """Yield both arguments of a relation in the order of the text, and exchanged."""
    for name, row, units in _relations(archives, kind):
        for label, (first, second) in (("text", units), ("exchanged", units[::-1])):
            yield Sample(f"{name}-{label}", whole(first), whole(second), label=label, group=row["doc"])


def _relations(archives: Path | None, kind: str) -> Iterator[tuple[str, dict[str, str], tuple[str, str]]]:
    files = read_archive(archives_folder(archives), ARCHIVE)
    names = [name for name in files if name.startswith(RELATIONS) and name.endswith(".rels")]
    if not names:
        raise CorpusError(f"archive {ARCHIVE!r} holds no relations below {RELATIONS!r}")
    for name in names:
        lines = files[name].decode("utf-8").split("\n")
        rows = csv.DictReader(filter(None, lines), delimiter="\t", quoting=csv.QUOTE_NONE)
        for number, row in enumerate(rows, start=2):
            # An argument of several ranges is written with its gaps, which are not part of it.
            if row["rel_type"] == kind and "," not in row["unit1_toks"] + row["unit2_toks"]:
                yield f"{row['doc']}/{number}", row, (row["unit1_txt"], row["unit2_txt"])
