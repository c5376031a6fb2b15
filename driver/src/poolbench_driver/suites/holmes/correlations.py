"""Correlations of winning rates: between types of phenomena, and with the scores of other benchmarks.

Winning rates are over pairs of entrants. Intervals come from a bootstrap over phenomena.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from poolbench.errors import InputError
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench_driver.contract.page import Cell, Column, Heads, Line, Part, Table
from poolbench_driver.contract.source import read_csv
from poolbench_driver.pages.text import interval
from poolbench_driver.statistics.correlation import MIN_POINTS, kendall_resamples
from poolbench_driver.statistics.winning_rate import winning_rate_resamples
from poolbench_driver.suites.holmes.recordings import NUM_RESAMPLES, ScoreTable

#: Name of the row and column of all sets.
OVERALL = "overall"


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval."""

    value: float  # NaN if it cannot be computed
    ends: tuple[float, float] | None = None

    def cell(self, spec: str = ".2f") -> Cell:
        """Return the figure as a cell of a table, empty if it cannot be computed."""
        if not np.isfinite(self.value):
            return Cell()
        low, high = self.ends or (None, None)
        return Cell(f"{self.value:{spec}}", self.value, low, high, interval(self.ends, spec))


def estimated(value: float, samples_R: np.ndarray, low: float = -np.inf, high: float = np.inf) -> Estimate:
    """Return a figure with the interval of 1.96 standard deviations of its resamples, within its bounds.

    Resamples have fewer different phenomena and agree less, so that percentiles of correlations would lie below them.
    The interval is None if fewer than half of the resamples have a value, or if all of them are equal.
    """
    finite = samples_R[np.isfinite(samples_R)]
    reach = 1.96 * float(finite.std()) if 2 * finite.size >= max(1, samples_R.size) else 0.0
    return Estimate(value, (max(low, value - reach), min(high, value + reach)) if reach else None)


def resampled(values_R: np.ndarray) -> Estimate:
    """Return a mean with its percentile interval, from the mean and then its resamples [1 + R].

    The interval is None if all resamples are equal, as with a single phenomenon.
    """
    varies = len(values_R) > 1 and np.nanmin(values_R[1:], initial=np.inf) < np.nanmax(values_R[1:], initial=-np.inf)
    return Estimate(float(values_R[0]), percentile_interval(values_R[1:]) if varies else None)


def rates_by_type(scores: ScoreTable) -> dict[str, np.ndarray]:
    """Return the winning rates of M models in percent, and their resamples, for all sets and each type [1 + R, M].

    Phenomena are drawn within each type, so that the resamples of two types are independent. Those of all sets
    (`OVERALL`) share the resamples of the types.
    """
    weights = np.ones((1 + NUM_RESAMPLES, len(scores.sets)))
    for seed, kind in enumerate([*scores.kinds, ""]):  # sets without a type count overall only
        if (of_kind := scores.types == kind).any():
            weights[1:, of_kind] = group_weights(scores.phenomena[of_kind], NUM_RESAMPLES, seed)
    columns = {OVERALL: np.ones(len(scores.sets), bool), **{kind: scores.types == kind for kind in scores.kinds}}
    return {
        kind: 100 * winning_rate_resamples(scores.scores[:, of_kind], weights[:, of_kind])
        for kind, of_kind in columns.items()
    }


def tau_of(first_RM: np.ndarray, second_RM: np.ndarray) -> Estimate:
    """Return Kendall's tau of two figures of the same models, with its interval."""
    measured_M = np.isfinite(first_RM[0]) & np.isfinite(second_RM[0])
    taus_R = kendall_resamples(first_RM[:, measured_M], second_RM[:, measured_M])
    return estimated(float(taus_R[0]), taus_R[1:], -1.0, 1.0)


def type_taus(rates: dict[str, np.ndarray]) -> dict[tuple[str, str], Estimate]:
    """Return the correlation of the winning rates of each two types, as `rates_by_type` returns these."""
    return {pair: tau_of(*(rates[kind] for kind in pair)) for pair in combinations(rates, 2)}


def beside(scores: ScoreTable, models: Sequence[str], file: Path) -> Part:
    """Return how far the winning rates order models as other benchmarks do.

    Args:
        scores: Scores of entrants on probing sets.
        models: The model of each entrant. The winning rate of a model is the mean over its entrants.
        file: A CSV file with a column `model` (names of models or of entrants) and a column of scores for each other
            benchmark. Higher is better.

    Raises:
        InputError: The file cannot be used, or has fewer than three models of the board.
    """
    head, lines = read_csv(file, ["model"])
    benchmarks = [name for name in head if name != "model"]
    places = {
        line.cells["model"]: [
            place for place, names in enumerate(zip(scores.models, models, strict=True)) if line.cells["model"] in names
        ]
        for line in lines
    }
    common = [name for name, of_name in places.items() if of_name]
    if len(common) < MIN_POINTS or len(places) < len(lines):
        raise InputError(
            f"{file} has {len(common)} models of the board, of {len(lines)} lines; {MIN_POINTS} are needed, each once, "
            f"such as {scores.models[0]}"
        )
    values = np.array([[line.number(name) for name in benchmarks] for line in lines if places[line.cells["model"]]])
    rates = rates_by_type(scores)
    table_lines = []
    for kind, rates_RM in rates.items():
        rates_RK = np.stack([rates_RM[:, places[name]].mean(axis=1) for name in common], axis=1)
        others = (np.broadcast_to(column, rates_RK.shape) for column in values.T)
        table_lines.append(Line.of(kind, *(tau_of(rates_RK, other_RK).cell() for other_RK in others)))
    heads: Heads = ["type", *(Column(name, has_intervals=True) for name in benchmarks)]
    note = (
        f"Kendall's tau of the winning rates with the scores in {file.name}, over {len(common)} models that both have; "
        "intervals of 95 % from a bootstrap over phenomena. The other benchmarks are not resampled."
    )
    return Part("beside", "Beside other benchmarks", [Table.of(heads, table_lines)], note=note)
