"""The D2 statistics of a response curve, each for many resamples of the openings at once; settings and intervals.

Every statistic takes weights [R, P] of the openings (bootstrap counts, or one row of ones for the value) and
returns [R].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import percentile_interval
from poolbench.statistics.response import (
    FluencyRules,
    ResponseGrid,
    SteeredTables,
    best_column,
    mean_scores,
    perplexity_ratio,
)
from poolbench.statuses import Status
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.statistics.correlation import MIN_POINTS, spearman


def opening_interval(
    samples: np.ndarray, num_openings: int, num_strata: int = 1, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the expanded percentile interval of bootstrap values over openings [num_resamples].

    A bootstrap of n units drawn within k strata has (n - k) / n of the variance of a mean, and normal instead of
    Student tails: with 10 openings a plain 95 % interval covers 90 % of means. The percentiles are moved outwards to
    correct this, which keeps the interval inside the range of the figure; of 5 openings and fewer it still covers less
    than 95 % (docs/metrics.md has the figures).

    Args:
        samples: Bootstrap values; NaN ones are dropped.
        num_openings: Resampled openings, n.
        num_strata: Groups that they were drawn within, k.
        level: Level of the interval.

    Returns:
        The bounds, or None for a single opening, and if fewer than half of the resamples have a value.

    Reference: Hesterberg (2015), What teachers should know about the bootstrap (expanded percentiles).
    """
    if num_openings < 2:
        return None
    return percentile_interval(samples, expanded_level(num_openings, num_strata, level))


def expanded_level(num_openings: int, num_strata: int = 1, level: float = 0.95) -> float:
    """Return the level of the percentiles that gives an interval of `level`."""
    from scipy import stats

    return float(2 * stats.norm.cdf(_expansion(num_openings, num_strata, level)) - 1)


def with_direction_spread(
    excess_R: np.ndarray, nulls_NR: np.ndarray, num_openings: int, num_strata: int, seed: int, level: float = 0.95
) -> np.ndarray:
    """Add the spread of directions to the bootstrap values of an excess.

    A direction without meaning has a drift of its own, so two of them differ by more than the openings explain. The
    variance between the null directions beyond that of the openings estimates this drift. A normal error of that
    variance is added to each resample; without drift, nothing is added.

    Args:
        excess_R: Value minus mean of the nulls; entry 0 is the figure, the rest resamples [1 + R].
        nulls_NR: The null directions' values in the same resamples [N, 1 + R].
        num_openings: Resampled openings, drawn within `num_strata`.
        num_strata: Groups that they were drawn within.
        seed: Seed of the errors.
        level: Level of the interval to take.
    """
    from scipy import stats

    num_nulls = len(nulls_NR)
    if num_nulls < 2:
        return excess_R
    noise_NR = nulls_NR[:, 1:] - nulls_NR[:, 1:].mean(axis=0)
    deflated = (num_openings - num_strata) / num_openings * (num_nulls - 1) / num_nulls
    drift = nulls_NR[:, 0].var(ddof=1) - noise_NR.var(axis=1).mean() / deflated
    if not drift > 0:
        return excess_R
    student = stats.t.ppf(0.5 + level / 2, num_nulls - 1) / _expansion(num_openings, num_strata, level)
    errors = np.random.default_rng(seed).normal(size=len(excess_R) - 1)
    scale = np.sqrt(drift * (1 + 1 / num_nulls)) * student
    return np.concatenate([excess_R[:1], excess_R[1:] + scale * errors])


def _expansion(num_openings: int, num_strata: int, level: float) -> float:
    """Return the half-width of the interval in bootstrap standard deviations."""
    from scipy import stats

    freedom = max(num_openings - num_strata, 1)
    return float(np.sqrt(num_openings / freedom) * stats.t.ppf(0.5 + level / 2, freedom))


@dataclass(frozen=True)
class SteeringRules(FluencyRules):
    """Settings of the D2 and D3 figures; all of them enter the rows or are fixed by the metric version."""

    reference_strength: float = 0.125  # strength of `d2.scp_1` and `d2.fluency`, in the run's unit of strength
    null_strengths: tuple[float, ...] = (0.0, 0.06, 0.125, 0.25)  # of the null directions and excess figures
    num_bootstrap: int = 1000  # paired resamples of the openings
    seed: int = 0  # seed of the resamples and of the halves of the openings
    level: float = 0.95  # level of the intervals
    direction: str = "C1"  # construction method of the steering directions
    is_lazy: bool = False  # whether the second half of the openings has texts at few strengths only


def rules_of(config: ConceptsConfig) -> SteeringRules:
    """Return the settings with which a run measures D2 and D3. Each cell then sets the direction."""
    return SteeringRules(
        reference_strength=config.budget.reference_strength,
        null_strengths=(0.0, *config.budget.null_strengths),
        num_bootstrap=config.budget.num_bootstrap,
        seed=config.seed,
        is_lazy=config.steering.reading == "lazy" and config.steered_texts is None,
    )


def tables_of_scores(rows: Sequence[Row]) -> SteeredTables:
    """Return texts, scores and likelihoods of rows of `text_scores`. Raise CellError `too_few` without rows."""
    if not rows:
        raise CellError(Status.TOO_FEW, "the run has no steered texts")
    texts = {row["text_id"]: {**row, "direction_key": str(row["direction"])} for row in rows}
    table = pa.Table.from_pylist(list(texts.values()))
    return SteeredTables(table, pa.Table.from_pylist(list(rows)), table)


CurveStatistic = Callable[[ResponseGrid, np.ndarray, SteeringRules], np.ndarray]


def scp(grid: ResponseGrid, weights_RP: np.ndarray, rules: SteeringRules) -> np.ndarray:
    """Return the Spearman correlation of strength and mean score, strength 0 included (the card's SCP).

    NaN if the mean score is the same at every strength. Raise CellError `too_few` below three strengths.
    """
    if len(grid.strengths) < MIN_POINTS:
        have = f"{len(grid.strengths)} strengths, with 0"
        raise CellError(Status.TOO_FEW, f"the curve has {have}; a correlation needs {MIN_POINTS}")
    means = mean_scores(grid, weights_RP)
    return spearman(np.broadcast_to(grid.strengths, means.shape), means.round(12))


def scp_1(grid: ResponseGrid, weights_RP: np.ndarray, rules: SteeringRules) -> np.ndarray:
    """Return the mean score at the reference strength minus unsteered."""
    means = mean_scores(grid, weights_RP)
    return means[:, grid.column(rules.reference_strength)] - means[:, 0]


def response_area(grid: ResponseGrid, weights_RP: np.ndarray, rules: SteeringRules) -> np.ndarray:
    """Return the area between the curve and its unsteered level by the trapezoid rule.

    It is divided by the largest strength, which makes it a mean rise in units of score.
    """
    means = mean_scores(grid, weights_RP)
    return np.trapezoid(means - means[:, :1], grid.strengths, axis=1) / grid.strengths[-1]


def fluency(grid: ResponseGrid, weights_RP: np.ndarray, rules: SteeringRules) -> np.ndarray:
    """Return the perplexity ratio at the reference strength."""
    return perplexity_ratio(grid, weights_RP)[:, grid.column(rules.reference_strength)]


def gain_at(grid: ResponseGrid, column: int, weights_RP: np.ndarray) -> np.ndarray:
    """Return the mean score at a column minus unsteered.

    Raise CellError `too_few` if there is no opening, or one has no text there.
    """
    if not grid.openings:
        raise CellError(Status.TOO_FEW, "no opening of the half that the gain is read on is complete")
    if not np.isfinite(grid.score[:, column]).all():
        raise CellError(Status.TOO_FEW, f"not all openings have a text at strength {grid.strengths[column]:g}")
    means = mean_scores(grid, weights_RP)
    return means[:, column] - means[:, 0]


def or_zeros(figure: Callable[[], np.ndarray], length: int) -> np.ndarray:
    """Return a null direction's figure [length].

    The figure is 0 if its curve is flat, or if its texts are not fluent at any strength.
    """
    try:
        return np.nan_to_num(figure(), nan=0.0)
    except CellError:
        return np.zeros(length)


def best_gain(grid: ResponseGrid, weights_RP: np.ndarray, rules: SteeringRules) -> np.ndarray:
    """Return the gain on the second half of the openings at the strength chosen on the first half.

    The strength is chosen once, on all first-half openings. Resamples vary only the other half. Raise CellError
    `not_fluent` as `best_column` does, and `too_few` as `gain_at`.
    """
    choose, read = grid.halves
    column = best_column(grid.at_openings(choose), rules)
    weights = weights_RP[:, read]
    empty = weights.sum(axis=1, keepdims=True) == 0
    return gain_at(grid.at_openings(read), column, np.where(empty, 1, weights))


def curve_grid(grid: ResponseGrid, rules: SteeringRules) -> ResponseGrid:
    """Return the openings whose whole curve is read."""
    return grid.at_openings(grid.halves[0]) if rules.is_lazy else grid


def curve_params(metric: str, rules: SteeringRules) -> dict[str, str]:
    """Return the parameters of a metric's rows that say which openings it reads."""
    return {"openings": "first half"} if rules.is_lazy and metric in _OF_CURVE else {}


_OF_CURVE = ("d2.scp", "d2.response_area")
#: The figures that also stand in excess of the null directions.
CURVE_STATISTICS: dict[str, CurveStatistic] = {
    "d2.scp": scp,
    "d2.scp_1": scp_1,
    "d2.response_area": response_area,
    "d2.best_gain": best_gain,
}

#: The figures of the card: it defines SCP as the correlation, and its code divides gains at one strength for D3.
PUBLISHED_STATISTICS: dict[str, CurveStatistic] = {"d2.scp": scp, "d2.scp_1": scp_1}
