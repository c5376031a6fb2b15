"""Choose samples up to a number: whole groups, in the proportions of splits and labels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from random import Random
from typing import TypeVar

from poolbench_corpora.probing.samples import Sample

_BINS = 10  # of real values
Stratum = tuple[str, Hashable]  # split and label
Groups = Mapping[str, Sequence[Sample]]
T = TypeVar("T")


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
    groups: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.group or sample.id].append(sample)
    taken: set[str] = set()
    room = limit
    for name in _order(groups, balanced, Random(seed)):
        if len(groups[name]) <= room:
            taken.add(name)
            room -= len(groups[name])
    return [sample for sample in samples if (sample.group or sample.id) in taken]


def some(items: Sequence[T], number: int, seed: str) -> list[T]:
    """Return at most so many of the items, in their order; other seeds choose others."""
    if len(items) <= number:
        return list(items)
    return [items[index] for index in sorted(Random(seed).sample(range(len(items)), number))]


def _order(groups: Groups, balanced: bool, rng: Random) -> list[str]:
    """Return the groups in the order in which they are taken."""
    places: list[tuple[float, float, str]] = []
    strata = _strata(groups)
    smallest: dict[str, int] = {}
    for (split, _), names in strata.items():
        smallest[split] = min(len(names), smallest.get(split, len(names)))
    for (split, _), names in strata.items():
        rng.shuffle(names)
        subset = names[: smallest[split]] if balanced else names
        places += [((index + 0.5) / len(subset), rng.random(), name) for index, name in enumerate(subset)]
    return [name for *_, name in sorted(places)]


def _strata(groups: Groups) -> dict[Stratum, list[str]]:
    classes = _classes(groups)
    count = Counter(label for labels in classes.values() for label in labels)
    strata: defaultdict[Stratum, list[str]] = defaultdict(list)
    for name, members in groups.items():
        rarest = min(classes[name], key=lambda label: (count[label], str(label)))
        strata[members[0].split or "", rarest].append(name)
    return dict(sorted(strata.items(), key=str))


def _classes(groups: Groups) -> dict[str, list[Hashable]]:
    """Return the labels of each group; for real values, the tenth in which the rank of their mean lies."""
    if any(sample.value is None for members in groups.values() for sample in members):
        return {name: [sample.label for sample in members] for name, members in groups.items()}
    means = {name: sum(sample.value or 0.0 for sample in members) / len(members) for name, members in groups.items()}
    ranks = {mean: rank for rank, mean in enumerate(sorted(means.values()))}  # equal means share a rank
    return {name: [_BINS * ranks[mean] // len(means)] for name, mean in means.items()}
