"""Definitions of probing sets, samples that readers yield, and the choice of whole groups of them."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from poolbench.config import StrictModel
from poolbench.config.base import read_yaml
from poolbench.errors import ConfigError
from poolbench.grouping import grouped

Type = Literal["syntax", "morphology", "semantics", "reasoning", "discourse"]
Input = Literal["text", "text_pair", "span", "span_pieces", "span_pair"]
Fidelity = Literal["same", "rebuilt", "planted"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Words = Annotated[
    str, Field(coerce_numbers_to_str=True), StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)
]

PAIRS: tuple[Input, ...] = ("text_pair", "span_pair")
PIECES: tuple[Input, ...] = ("span_pieces", "span_pair")
"""Inputs whose spans may have several pieces."""


class ProbingSet(StrictModel):
    """The definition of a probing set: its task, the origin of its texts, and how they are read."""

    id: Name
    type: Type  # type of phenomenon
    phenomenon: Words
    input: Input  # what one vector, or pair of vectors, stands for
    task: Literal["classes", "values"] = "classes"
    source: Words  # repository, corpus or grammar
    revision: Words  # commit or version of the source
    licence: Words
    citation: Words
    fidelity: Fidelity  # texts and labels of the public suite, rebuilt from another source, or written by a grammar
    stands_for: str | None = None  # set of the public suite that it replaces
    classes: tuple[str, ...] = ()  # its labels; others are an error. Without any, all labels are read
    max_instances: int = Field(4000, ge=1, le=1_000_000)
    balanced: bool = False  # whether as many instances of each label are chosen
    reader: Name
    parameters: Mapping[str, Any] = {}  # of the reader
    folder: Path | None = Field(None, exclude=True, repr=False)  # where the definition lies


Kind = TypeVar("Kind", bound=ProbingSet)


def read_definition(path: Path) -> ProbingSet:
    """Return the definition in a YAML file. Raise ConfigError with the file and the wrong fields."""
    return definition_of(read_yaml(path, "probing set") | {"folder": path.parent}, str(path), ProbingSet)


def definition_of(values: Mapping[str, Any], where: str, kind: type[Kind]) -> Kind:
    """Return the definition with these fields. Raise ConfigError with the place and the wrong fields."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, issue['loc'])) or 'set'}: {issue['msg']}" for issue in error.errors()]
        raise ConfigError(f"probing set {where}: {'; '.join(wrong)}") from None


MAX_NOTES = 50
"""Notes that are kept of one set; the others are counted."""


@dataclass(frozen=True)
class Span:
    """A character range of a text."""

    text: str
    start: int
    end: int

    @property
    def words(self) -> str:
        """Return the characters of the range."""
        return self.text[self.start : self.end]


@dataclass(frozen=True)
class Sample:
    """One instance as a reader yields it."""

    id: str  # unique in the set
    first: tuple[Span, ...]  # the spans whose mean is the first vector
    second: tuple[Span, ...] = ()  # likewise of a pair; empty for others
    label: str | None = None
    value: float | None = None
    split: str | None = None  # train, dev or test; None where the source gives none
    group: str = ""  # samples of one group stay in one fold; by default each is a group of its own
    word: str | None = None  # word type of a span, for control labels
    where: str = ""  # file and line, for notes


@dataclass(frozen=True)
class Note:
    """Why a sample, a file or a set was left out."""

    where: str  # file and line, or the set
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" if self.where else self.reason


def first_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return the first notes, and the number of the others."""
    more = len(notes) - MAX_NOTES
    return (*notes[:MAX_NOTES], Note("", f"{more:,} more notes")) if more > 0 else tuple(notes)


def whole(text: str) -> tuple[Span, ...]:
    """Return a whole text as a span."""
    return (Span(text, 0, len(text)),)


def word_type(*spans: Span) -> str:
    """Return the word type of a span, or of the pieces of one: its characters in lower case."""
    return " ".join(span.words for span in spans).lower()


_BINS = 10  # of real values
Stratum = tuple[str, Hashable]  # split and label
Groups = Mapping[str, Sequence[Sample]]


def choose(samples: Sequence[Sample], limit: int, *, balanced: bool = False, seed: str = "0") -> list[Sample]:
    """Return at most `limit` samples in their order; samples of one group are chosen together.

    A group belongs to the stratum of its split and of the rarest of its labels (a tenth of the range of ranks for real
    values). Groups are taken from all strata at equal pace; one that is larger than the rest of the limit is passed
    over.

    Args:
        balanced: Whether as many groups are taken of each label within a split.
        seed: Other seeds choose other groups.
    """
    if len(samples) <= limit and not balanced:
        return list(samples)
    groups = grouped((sample.group or sample.id, sample) for sample in samples)
    taken: set[str] = set()
    room = limit
    for name in _order(groups, balanced, Random(seed)):
        if len(groups[name]) <= room:
            taken.add(name)
            room -= len(groups[name])
    return [sample for sample in samples if (sample.group or sample.id) in taken]


def _order(groups: Groups, balanced: bool, rng: Random) -> list[str]:
    """Return the groups in the order in which they are taken."""
    places: list[tuple[float, float, str]] = []
    classes = _classes(groups)
    count = Counter(label for labels in classes.values() for label in labels)
    names_of: defaultdict[Stratum, list[str]] = defaultdict(list)  # by split and rarest label
    for name, members in groups.items():
        rarest = min(classes[name], key=lambda label: (count[label], str(label)))
        names_of[members[0].split or "", rarest].append(name)
    strata = dict(sorted(names_of.items(), key=str))
    smallest: dict[str, int] = {}
    for (split, _), names in strata.items():
        smallest[split] = min(len(names), smallest.get(split, len(names)))
    for (split, _), names in strata.items():
        rng.shuffle(names)
        subset = names[: smallest[split]] if balanced else names
        places += [((index + 0.5) / len(subset), rng.random(), name) for index, name in enumerate(subset)]
    return [name for *_, name in sorted(places)]


def _classes(groups: Groups) -> dict[str, list[Hashable]]:
    """Return the labels of each group; for real values, the tenth in which the rank of their mean lies."""
    if any(sample.value is None for members in groups.values() for sample in members):
        return {name: [sample.label for sample in members] for name, members in groups.items()}
    means = {name: sum(sample.value or 0.0 for sample in members) / len(members) for name, members in groups.items()}
    ranks = {mean: rank for rank, mean in enumerate(sorted(means.values()))}  # equal means share a rank
    return {name: [_BINS * ranks[mean] // len(means)] for name, mean in means.items()}
