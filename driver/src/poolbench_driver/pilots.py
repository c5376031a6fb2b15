"""Pilot accuracies of two probing configurations, and the data that a comparison of the two needs."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from poolbench.errors import ConfigError, InputError
from poolbench.statistics.bootstrap import t_interval
from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.paired import paired_differences
from poolbench_corpora.reading import name_in, records
from poolbench_driver.statistics.mcnemar import mcnemar_power, mcnemar_size, of_one_sign, shares_of
from poolbench_driver.statistics.training_size import num_parameters, recommend_training_size

#: File and line, and the columns there.
Record = tuple[str, Mapping[str, Any]]
_TRUTH = {"1": True, "true": True, "0": False, "false": False}
#: Effects below this are 0 but for the rounding of a mean.
_ROUNDING = 1e-12
#: Largest difference between an effect and the shares of discordant passages that rounding by hand explains.
_BY_HAND = 5e-3


@dataclass(frozen=True)
class Pilot:
    """One configuration: its accuracy by seed, and the correct items by seed if the file has them."""

    accuracies: Mapping[str, float]
    correct: Mapping[str, Mapping[str, bool]]


@dataclass(frozen=True)
class Power:
    """Power of McNemar's test at `n` test passages. For several seeds, the power is the mean over the seeds.

    Attributes:
        p01: Share of passages that only the second configuration gets right.
        p10: Share of passages that only the first configuration gets right.
        discordance: `given`, `counted` from items, or `independent` errors, which is assumed if only accuracies are
            known. If both configurations err on the same passages, the true power is higher.
        type_m: Mean exaggeration of a significant difference.
        type_s: Probability that a significant difference has the wrong sign.
        seeds: Power of each seed, or None if the shares were given.
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
class PilotComparison:
    """Comparison of two configurations, second minus first, from pilots paired by seed or from given values.

    Attributes:
        differences: Difference of each seed; empty without pilots.
        interval: Student's interval over the seeds; None with one seed.
        shares: By seed, the shares of passages that only the second and only the first configuration gets right. Given
            shares have an empty name. If there are no shares, only the effect is known.
        num_items: Fewest items of a seed; None without items.
    """

    effect: float
    differences: Mapping[str, float]
    interval: tuple[float, float] | None
    shares: Mapping[str, tuple[float, float]]
    num_items: int | None
    discordance: str

    def power(self, n: int, alpha: float) -> Power | None:
        """Return the mean power over the seeds, or None without a difference.

        A seed has power 0 and no errors if its difference is 0 or has the opposite sign of the overall difference.
        """
        power_by_seed = {
            seed: power_at(*self.shares[seed], n, alpha)
            for seed, is_right in zip(self.shares, of_one_sign(list(self.shares.values())), strict=True)
            if is_right
        }
        if not power_by_seed:
            return None
        p01, p10 = map(fmean, zip(*self.shares.values(), strict=True))
        by_seed = {seed: power_by_seed[seed].power if seed in power_by_seed else 0.0 for seed in self.shares}
        of_seeds = by_seed if by_seed.keys() == self.differences.keys() else None
        type_m, type_s = (
            fmean(finite_errors) if (finite_errors := [error for error in errors if error is not None]) else None
            for errors in zip(*((power.type_m, power.type_s) for power in power_by_seed.values()), strict=True)
        )
        return Power(p01, p10, n, self.discordance, fmean(by_seed.values()), type_m, type_s, of_seeds)

    def row(self, planned: float, alpha: float) -> dict[str, Any]:
        """Return the row of a comparison table, for pilots of one seed with items.

        Power, errors and size are for a stated difference at the discordance of the items. The observed difference is
        not used, because its power says no more than its p-value, and entrants are compared after they were ranked.
        """
        n, ((p01, p10),) = self.num_items or 0, self.shares.values()
        shares = shares_of(planned, p01 + p10)
        return {
            **{"n": n, "difference": self.effect, "p01": p01, "p10": p10, "planned": planned},
            **mcnemar_power(*shares, n, alpha)._asdict(),
            "smallest_n": mcnemar_size([shares], alpha=alpha),
        }


@dataclass(frozen=True)
class Advice:
    """The data that a comparison needs: a bound of the training passages, and the power of the test of accuracies.

    Attributes:
        width: Width of the vectors, the larger of two. None if only the power was requested.
        hidden: Units of the hidden layer of the probes; None for linear probes.
        num_parameters: Weights and intercepts of a probe of two classes; None without a width.
        num_train: Training passages, by the bound; None without a width, or if the status is not ok.
        num_total: Passages of all splits; None if `num_train` is None.
        status: As in `TrainingSize`.
        smallest_n: Recommended number of test passages, at which the power is .8; None if it is not known.
    """

    protocol: str
    criterion: str
    effect: float
    width: int | None
    hidden: int | None
    num_parameters: int | None
    num_train: int | None
    num_total: int | None
    status: str
    reason: str
    split: str
    interval: tuple[float, float] | None
    seeds: Mapping[str, float] | None
    alpha: float
    power: Power | None
    smallest_n: int | None


def advise(
    compared: PilotComparison,
    width: int | None = None,
    *,
    hidden: int | None = None,
    criterion: str = "accuracy",
    protocol: str = "corrected",
    split: str = "4:1:1",
    n: int | None = None,
    alpha: float = 0.05,
) -> Advice:
    """Return the data that a comparison needs. For further arguments, see `recommend_training_size`.

    Args:
        width: Width of the vectors, or None for the power alone.
        n: Number of test passages for the power. By default, the pilots' number.

    Raises:
        ConfigError: An argument is out of range, or the number of test passages is missing.
        InputError: Shares of discordant passages are impossible.
    """
    shares = list(compared.shares.values())
    if width is None and (hidden is not None or not shares):
        raise ConfigError("--width is missing: the width of the vectors that the probes read")
    if n is not None and not shares:
        raise ConfigError("--n is for the power, which also needs --p01 and --p10, or pilots in place of --effect")
    num_test = compared.num_items if n is None else n
    power = compared.power(num_test, alpha) if num_test is not None else None
    try:
        smallest_n = mcnemar_size(shares, alpha=alpha) if shares else None
    except ValueError as error:
        raise InputError(str(error)) from None
    is_undecided = compared.interval is not None and compared.interval[0] <= 0 <= compared.interval[1]
    judged_power = None
    if is_undecided and (power is not None or abs(compared.effect) >= _ROUNDING):
        if num_test is None:
            raise ConfigError("the pilots' interval includes 0: give --n, the test passages there are, for the power")
        judged_power = power.power if power is not None else 0.0
    try:
        size = recommend_training_size(
            compared.effect,
            1 if width is None else width,
            protocol,
            hidden=hidden,
            criterion=criterion,
            split=_split(split),
            interval=compared.interval,
            power=judged_power,
        )
    except StatisticError as error:
        raise ConfigError(str(error)) from None
    if width is None:
        size = size._replace(num_train=None, num_total=None)
    return Advice(
        protocol=protocol,
        criterion=criterion,
        effect=compared.effect,
        width=width,
        hidden=hidden,
        num_parameters=None if width is None else num_parameters(width, hidden),
        **size._asdict(),
        split=split,
        interval=compared.interval,
        seeds=compared.differences or None,
        alpha=alpha,
        power=power,
        smallest_n=smallest_n,
    )


def _split(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(":"))
    except ValueError:
        raise ConfigError(f"--split {text}: use shares such as 4:1:1, training first") from None


def power_at(p01: float, p10: float, n: int, alpha: float) -> Power:
    """Return the power for given shares. Raise InputError if they are equal or not probabilities, or n is below 1."""
    try:
        estimate = mcnemar_power(p01, p10, n, alpha)
    except ValueError as error:
        raise InputError(str(error)) from None
    type_m, type_s = (None if math.isnan(figure) else figure for figure in (estimate.type_m, estimate.type_s))
    return Power(p01, p10, n, "given", estimate.power, type_m, type_s)


def read_pilot(path: Path) -> Pilot:
    """Return a pilot from a table: `seed, accuracy`, or `seed, item, correct` with one record per item.

    Raises:
        InputError: The file has no records, lacks columns, has a duplicate seed or item, or has an accuracy that is not
            a share. The message names the file.
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


def compare_pilots(first: Pilot, second: Pilot) -> PilotComparison:
    """Return effect, paired interval over seeds, and discordant shares. Raise InputError if seeds or items differ."""
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
    return PilotComparison(
        effect=float(differences.mean()),
        differences=dict(zip(seeds, differences.tolist(), strict=True)),
        interval=interval,
        shares=shares,
        num_items=num_items,
        discordance="counted" if counted else "independent",
    )


def given_comparison(effect: float | None, shares: tuple[float, float] | None) -> PilotComparison:
    """Return a comparison made without pilots, from a given effect, given shares of discordant passages, or both.

    Args:
        shares: Shares of passages that only the second and only the first configuration gets right.

    Raises:
        ConfigError: Neither is given, or effect and shares contradict each other.
    """
    difference = None if shares is None else shares[0] - shares[1]
    if effect is None and difference is None:
        raise ConfigError("nothing to plan for: give two pilot files, --effect, or --p01 and --p10")
    if effect is not None and difference is not None and abs(abs(effect) - abs(difference)) > _BY_HAND:
        reason = f"--p01 and --p10 differ by {difference:.6g}, the effect is {effect:.6g}"
        raise ConfigError(f"{reason}: they describe two comparisons")
    size = effect if effect is not None else difference or 0.0
    return PilotComparison(size, {}, None, {} if shares is None else {"": shares}, None, "given")


def compare_answers(first: Mapping[str, bool], second: Mapping[str, bool]) -> PilotComparison:
    """Compare two configurations on the test items that both answered, as pilots of one seed.

    Raise InputError if there is no such item.
    """
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise InputError("no test item in common")
    sides = ({item: side[item] for item in shared} for side in (first, second))
    return compare_pilots(*(Pilot({"0": fmean(side.values())}, {"0": side}) for side in sides))


def _counted(first: Pilot, second: Pilot) -> tuple[dict[str, tuple[float, float]], int] | None:
    """Return the discordant shares of each seed and the fewest items of a seed, or None without items."""
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
