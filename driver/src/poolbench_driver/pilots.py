"""Pilot accuracies of two probing configurations, and what they show about a larger comparison."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from poolbench.errors import InputError
from poolbench.statistics.bootstrap import t_interval
from poolbench.statistics.mcnemar import mcnemar_power
from poolbench.statistics.paired import paired_differences
from poolbench_corpora.reading import name_in, records

#: File and line, and the columns there.
Record = tuple[str, Mapping[str, Any]]
_TRUTH = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Pilot:
    """One configuration: accuracy by seed, and the correct items by seed where the file has them."""

    accuracies: Mapping[str, float]
    correct: Mapping[str, Mapping[str, bool]]


@dataclass(frozen=True)
class Power:
    """Power of McNemar's test at `n` test passages; of several pilots the mean over their seeds.

    Attributes:
        p01: Share of passages that only the second configuration gets right.
        p10: Share that only the first does.
        discordance: `given`, `counted` from items, or `independent` errors, which is assumed where there are only
            accuracies; configurations that err on the same passages have more power.
        type_m: Mean exaggeration of a significant difference.
        type_s: Probability that a significant difference has the wrong sign.
        seeds: Power of each seed; None where the shares were given.
    """

    p01: float
    p10: float
    n: int
    discordance: str
    power: float
    type_m: float | None
    type_s: float | None
    seeds: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Comparison:
    """Two pilots, paired by seed: second minus first.

    Attributes:
        interval: Student's interval over the seeds; None with one seed.
        shares: By seed, the shares of passages that only the second and only the first configuration gets right.
        num_items: Fewest items of a seed; None without items.
    """

    effect: float
    differences: Mapping[str, float]
    interval: tuple[float, float] | None
    shares: Mapping[str, tuple[float, float]]
    num_items: int | None
    discordance: str

    def power(self, n: int, alpha: float) -> Power | None:
        """Return the mean power over the seeds; None if no seed has a difference. One without has no power."""
        power_by_seed = {
            seed: power_at(*seed_shares, n, alpha)
            for seed, seed_shares in self.shares.items()
            if seed_shares[0] != seed_shares[1]
        }
        if not power_by_seed:
            return None
        p01, p10 = map(fmean, zip(*self.shares.values(), strict=True))
        by_seed = {seed: power_by_seed[seed].power if seed in power_by_seed else 0.0 for seed in self.shares}
        type_m, type_s = (
            fmean(finite_errors) if (finite_errors := [error for error in errors if error is not None]) else None
            for errors in zip(*((power.type_m, power.type_s) for power in power_by_seed.values()), strict=True)
        )
        return Power(p01, p10, n, self.discordance, fmean(by_seed.values()), type_m, type_s, by_seed)


def power_at(p01: float, p10: float, n: int, alpha: float) -> Power:
    """Return power with its shares; raise InputError if they are not probabilities or equal, or there is no passage."""
    try:
        estimate = mcnemar_power(p01, p10, n, alpha)
    except ValueError as error:
        raise InputError(str(error)) from None
    type_m, type_s = (None if math.isnan(figure) else figure for figure in (estimate.type_m, estimate.type_s))
    return Power(p01, p10, n, "given", estimate.power, type_m, type_s)


def read_pilot(path: Path) -> Pilot:
    """Return a pilot from a table: `seed, accuracy`, or `seed, item, correct` with one record per item.

    Raises:
        InputError: Naming the file and what is wrong: no records, missing columns, a duplicate seed or item, an
            accuracy that is not a share.
    """
    rows = list(records(path))
    names = set.intersection(*(set(values) for _, values in rows))
    if {"seed", "item", "correct"} <= names:
        correct = _items(rows)
        return Pilot({seed: fmean(seed_items.values()) for seed, seed_items in correct.items()}, correct)
    if not {"seed", "accuracy"} <= names:
        raise InputError(f"{path}: need columns seed, accuracy or seed, item, correct; got {', '.join(sorted(names))}")
    accuracies: dict[str, float] = {}
    for where, values in rows:
        seed = _name(values, "seed", where)
        if seed in accuracies:
            raise InputError(f"{where}: seed {seed} comes twice")
        accuracies[seed] = _share(values["accuracy"], where, seed)
    return Pilot(accuracies, {})


def compare_pilots(first: Pilot, second: Pilot) -> Comparison:
    """Return effect, paired interval over seeds, and discordant shares; raise InputError if seeds or items differ."""
    seeds = list(first.accuracies)
    values = (np.array(list(pilot.accuracies.values())) for pilot in (first, second))
    try:
        differences = paired_differences(seeds, next(values), list(second.accuracies), next(values))
        interval = t_interval(differences) if len(seeds) > 1 else None
        counted = _counted(first, second)
    except ValueError as error:
        raise InputError(f"pilots: {error}") from None
    pairs = {seed: (first.accuracies[seed], second.accuracies[seed]) for seed in seeds}
    shares, num_items = counted or ({seed: ((1 - a) * b, a * (1 - b)) for seed, (a, b) in pairs.items()}, None)
    return Comparison(
        effect=float(differences.mean()),
        differences=dict(zip(seeds, differences.tolist(), strict=True)),
        interval=interval,
        shares=shares,
        num_items=num_items,
        discordance="counted" if counted else "independent",
    )


def compare_answers(first: Mapping[str, bool], second: Mapping[str, bool]) -> Comparison:
    """Return the comparison of two configurations on the test items that both answered, as pilots of one seed.

    Raise InputError if there is none.
    """
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise InputError("no test item in common")
    sides = ({item: side[item] for item in shared} for side in (first, second))
    return compare_pilots(*(Pilot({"0": fmean(side.values())}, {"0": side}) for side in sides))


def _counted(first: Pilot, second: Pilot) -> tuple[dict[str, tuple[float, float]], int] | None:
    """Return the discordant shares of each seed, and the fewest items of a seed; None without items."""
    if not first.correct or not second.correct:
        return None
    gaps = {}
    for seed, items in first.correct.items():
        other = second.correct[seed]
        sides = (np.array(list(side.values()), dtype=float) for side in (items, other))
        gaps[seed] = paired_differences(list(items), next(sides), list(other), next(sides))
    shares = {seed: (float((gap > 0).mean()), float((gap < 0).mean())) for seed, gap in gaps.items()}
    return shares, min(map(len, gaps.values()))


def _name(values: Mapping[str, Any], column: str, where: str) -> str:
    name = name_in(values, column, where)
    if not name:
        raise InputError(f"{where}: {column} is missing; remove the record")
    return name


def _share(value: Any, where: str, seed: str) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 <= share <= 1:
        raise InputError(f"{where}: accuracy of seed {seed} is {value!r}; it must be a share from 0 to 1")
    return share


def _items(rows: Iterable[Record]) -> dict[str, dict[str, bool]]:
    items_by_seed: dict[str, dict[str, bool]] = {}
    for where, values in rows:
        seed, item, value = (_name(values, name, where) for name in ("seed", "item", "correct"))
        if value.lower() not in _TRUTH:
            raise InputError(f"{where}: correct of seed {seed}, item {item} is {values['correct']!r}; use 0 or 1")
        if item in items_by_seed.setdefault(seed, {}):
            raise InputError(f"{where}: item {item} comes twice with seed {seed}")
        items_by_seed[seed][item] = _TRUTH[value.lower()]
    return items_by_seed
