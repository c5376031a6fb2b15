"""GUM's rhetorical structure: elementary discourse units, and the relations that join them to trees of dependencies."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

from recipes.probing_sets.readers.gum import TREEBANK
from recipes.probing_sets.readers.treebank import Sentence, Word, read_treebank, some

from poolbench.errors import UnknownNameError
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, Span, whole, word_type

# `joint-list_m:7->4:0:...` opens unit 7, which is joined to unit 4 by a relation of equal members; `ROOT:2:0` unit 2.
# What follows a semicolon is a further relation of the same unit, which is not part of the tree.
_OPENS = re.compile(
    r"(?:(?P<root>ROOT):(?P<top>\d+)|(?P<relation>[a-z-]+)(?P<equal>_m)?:(?P<number>\d+)->(?P<head>\d+)):"
)
_NOT_A_RELATION = "same-unit"  # joins the parts of a unit that another one interrupts
_NEARBY = range(2, 6)  # sentences between which a pair of other units is drawn
_FAR = 20  # units


@dataclass(frozen=True)
class Unit:
    """An elementary discourse unit, and its relation to the unit that it depends on; neither at the root."""

    number: int  # in the document
    head: int | None
    relation: str
    is_equal: bool  # whether the relation has several nuclei
    sentence: int  # number in the document
    span: Span
    where: str


def units(document: Sequence[Sentence]) -> dict[int, Unit]:
    """Return the units of a document by number. A unit is what stands between two openings in one sentence."""
    unit_by_number: dict[int, Unit] = {}
    for place, sentence in enumerate(document):
        opened = [(index, match) for index, match in enumerate(map(_opening, sentence.words)) if match]
        ends = [index for index, _ in opened[1:]] + [len(sentence.words)]
        for (start, match), end in zip(opened, ends, strict=True):
            unit_by_number[int(match["number"] or match["top"])] = Unit(
                number=int(match["number"] or match["top"]),
                head=None if match["root"] else int(match["head"]),
                relation=match["relation"] or "",
                is_equal=bool(match["equal"]),
                sentence=place,
                span=sentence.span(start, end),
                where=sentence.id,
            )
    return unit_by_number


def _opening(word: Word) -> re.Match[str] | None:
    return _OPENS.match(word.misc.get("Discourse", ""))


def read_rhetoric(
    definition: ProbingSet, archives: Path | None, *, label: str, per_document: int
) -> Iterator[Sample | Note]:
    """Yield units, pairs of units, or sentences of each document with one of `LABELS`, at most so many of each.

    Each unit is read in its own sentence. A document is a group. Pairs with the same first unit stay together.

    Raises:
        UnknownNameError: The label is not among `LABELS`.
    """
    if label not in LABELS:
        raise UnknownNameError("label of rhetorical structure", label, LABELS)
    bank = read_treebank(archives, TREEBANK)
    yield from bank.notes()
    for document in bank.documents():
        samples = list(LABELS[label](document, units(document)))
        firsts = list(dict.fromkeys(sample.first for sample in samples))
        subset = set(some(firsts, per_document, document[0].document))
        yield from (sample for sample in samples if sample.first in subset)


Units = Mapping[int, Unit]


def path_to_root(number: int, units: Units) -> list[int] | None:
    """Return a unit and those above it; None if one of them is in a sentence that could not be read."""
    path = [number]
    while (unit := units.get(path[-1])) and unit.head is not None:
        path.append(unit.head)  # GUM's relations form a tree
    return path if unit else None


def distance(first: int, second: int, units: Units) -> int | None:
    """Return the number of relations between two units; None if one of them cannot be read."""
    paths = path_to_root(first, units), path_to_root(second, units)
    if paths[0] is None or paths[1] is None:
        return None
    return len(set(paths[0]) ^ set(paths[1]))


def _relation(document: Sequence[Sentence], units: Units, *, part: bool = False) -> Iterator[Sample]:
    """Yield each unit with the one that it depends on, and the relation; of its name only the group, if `part`."""
    for unit in units.values():
        head = units.get(-1 if unit.head is None else unit.head)
        if head and unit.relation != _NOT_A_RELATION:
            yield _pair(document, unit, head, label=unit.relation.split("-")[0] if part else unit.relation)


def _nuclearity(document: Sequence[Sentence], units: Units) -> Iterator[Sample]:
    """Yield each unit as a satellite, or as a nucleus: one with dependants, or in a relation of equal members."""
    heads = {unit.head for unit in units.values()}
    for unit in units.values():
        is_nucleus = unit.head is None or unit.is_equal or unit.number in heads
        yield _of_unit(document, unit, label="nucleus" if is_nucleus else "satellite")


def _depth(document: Sequence[Sentence], units: Units) -> Iterator[Sample]:
    """Yield each unit with the number of relations up to the root."""
    for unit in units.values():
        if (path := path_to_root(unit.number, units)) is not None:
            yield _of_unit(document, unit, value=len(path) - 1)


def _distance(document: Sequence[Sentence], units: Units) -> Iterator[Sample]:
    """Yield each unit with a later one of another sentence, and the number of relations between the two."""
    for unit in units.values():
        later = [
            other for other in units.values() if other.sentence > unit.sentence and other.number <= unit.number + _FAR
        ]
        other = Random(f"{unit.where}:{unit.number}").choice(later) if later else None
        if other and (between := distance(unit.number, other.number, units)) is not None:
            yield _pair(document, unit, other, value=between)


def _successive(document: Sequence[Sentence], units: Units) -> Iterator[Sample]:
    """Yield the last unit of a sentence with the first of the next one, and with the first of one further on.

    Both classes therefore have the same units in the same places of their sentences.
    """
    of_sentence: dict[int, list[Unit]] = {}
    for unit in units.values():
        of_sentence.setdefault(unit.sentence, []).append(unit)
    for place, next_place in pairwise(sorted(of_sentence)):
        last, following = of_sentence[place][-1], of_sentence[next_place][0]
        further = [of_sentence[place + step][0] for step in _NEARBY if place + step in of_sentence]
        if following.number == last.number + 1 and further:
            yield _pair(document, last, following, label="successive")
            yield _pair(document, last, Random(f"{last.where}:{last.number}").choice(further), label="other")


def _count(document: Sequence[Sentence], units: Units) -> Iterator[Sample]:
    """Yield each sentence with its number of units."""
    for place, sentence in enumerate(document):
        number = sum(unit.sentence == place for unit in units.values())
        yield Sample(sentence.id, whole(sentence.text), value=number, group=sentence.document, where=sentence.id)


def _of_unit(
    document: Sequence[Sentence], unit: Unit, *, label: str | None = None, value: float | None = None
) -> Sample:
    return Sample(
        f"{document[0].document}/{unit.number}",
        (unit.span,),
        label=label,
        value=value,
        group=document[0].document,
        word=word_type(unit.span),
        where=unit.where,
    )


def _pair(
    document: Sequence[Sentence], first: Unit, second: Unit, *, label: str | None = None, value: float | None = None
) -> Sample:
    name = document[0].document
    identity = f"{name}/{first.number}-{second.number}"
    return Sample(identity, (first.span,), (second.span,), label=label, value=value, group=name, where=first.where)


LABELS: dict[str, Callable[[Sequence[Sentence], Units], Iterator[Sample]]] = {
    "relation": _relation,
    "relation_group": partial(_relation, part=True),
    "nuclearity": _nuclearity,
    "depth": _depth,
    "distance": _distance,
    "successive": _successive,
    "count": _count,
}
