"""D2: how far steering along a direction moves its concept's score, beyond what null directions do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from poolbench.contracts.gates import GatedScorer
from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.resampling import bootstrap_counts
from poolbench.statuses import Status
from poolbench_driver.suites.poolbench.measures.grids import (
    ResponseGrid,
    SteeredTables,
    align_openings,
    response_grids,
    single_grid,
)
from poolbench_driver.suites.poolbench.measures.intervals import opening_interval, with_direction_spread
from poolbench_driver.suites.poolbench.measures.response import (
    CURVE_STATISTICS,
    CurveStatistic,
    best_column,
    fluency,
    gain_at,
    halves,
    perplexity_ratio,
)
from poolbench_driver.suites.poolbench.measures.rules import SteeringRules

CI_METHOD = "paired bootstrap over openings, expanded percentile"
EXCESS_CI_METHOD = "paired bootstrap over openings, expanded percentile, with the spread of null directions"
_SUFFIXES = (".excess", ".null_rank", ".null_p95")
D2_METRICS = (
    *(metric + suffix for metric in CURVE_STATISTICS for suffix in ("", *_SUFFIXES)),
    "d2.best_strength",
    "d2.fluency",
)


def d2_measures(
    steered: SteeredTables,
    unsteered: SteeredTables,
    nulls: SteeredTables | None,
    *,
    scorer: GatedScorer,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
    direction_key: str | None = None,
    direction: str = "C1",
) -> list[Measure]:
    """Return all D2 figures of one (concept, strategy): values, and their excess over the null directions.

    Args:
        steered: Texts along the strategy's direction.
        unsteered: Texts of the same openings at strength 0.
        nulls: Texts along the null directions of the concept; None leaves the excess figures out.
        scorer: The concept's scorer; an invalid one makes every figure null with its status.
        rules: Settings.
        direction_key: Which `direction_key` of `steered`; not needed if there is only one.
        direction: Construction method, for the rows.

    Returns:
        Measures in the order of D2_METRICS; those that cannot be computed are null with status and reason.
    """
    try:
        scorer.require_valid()
        grid = single_grid(steered, unsteered, scorer.concept, direction_key)
        null_grids = response_grids(nulls, unsteered, scorer.concept) if nulls is not None else {}
    except CellError as error:
        return blank_d2(error, direction=direction, scorer=scorer.concept)
    weights = opening_weights(grid, rules)
    common = _common_fields(grid, rules, direction, scorer)
    measures = []
    for metric, statistic in CURVE_STATISTICS.items():
        measures.append(_value(metric, statistic, grid, weights, rules, common))
        if null_grids:
            measures += excess_measures(metric, statistic, grid, list(null_grids.values()), rules, common)
    return [*measures, _best_strength(grid, rules, common), _fluency(grid, weights, rules, common)]


def blank_d2(
    error: CellError, *, direction: str = "C1", scorer: str | None = None, excess: bool = True
) -> list[Measure]:
    """Return every D2 figure as a null: for strategies and scorers that could not be measured."""
    names = [name for name in D2_METRICS if excess or not name.endswith(_SUFFIXES)]
    return [Measure.failed(name, error, direction=direction, scorer=scorer) for name in names]


def excess_measures(
    metric: str,
    statistic: CurveStatistic,
    grid: ResponseGrid,
    null_grids: list[ResponseGrid],
    rules: SteeringRules,
    common: dict[str, Any],
) -> list[Measure]:
    """Return a figure minus its mean over the null directions, its rank among them, and their 95th percentile.

    Both sides use the null strengths and the same resamples of the openings. A null direction with a flat curve, or
    without a fluent strength, counts as 0. The interval includes the spread between directions.
    """
    aligned = align_openings([grid, *null_grids])
    steered_grid, *others = (aligned_grid.at_strengths(rules.null_strengths) for aligned_grid in aligned)
    num_openings = len(steered_grid.openings)
    weights = np.vstack([np.ones((1, num_openings)), opening_weights(steered_grid, rules)])
    try:
        value = statistic(steered_grid, weights, rules)
    except CellError as error:
        return [Measure.failed(metric + suffix, error, **common) for suffix in _SUFFIXES]
    nulls_NR = np.array([or_zeros(partial(statistic, other, weights, rules), len(weights)) for other in others])
    if not np.isfinite(value[0]):
        return [_flat(metric + suffix, common) for suffix in _SUFFIXES]
    excess = value - nulls_NR.mean(axis=0)
    details = {
        "value_at_null_strengths": float(value[0]),
        "null_mean": float(nulls_NR[:, 0].mean()),
        "null_sd": float(nulls_NR[:, 0].std(ddof=1)) if len(others) > 1 else None,
        "num_nulls": len(others),
        "percentile": float(100 * (nulls_NR[:, 0] < value[0]).mean()),
    }
    fields = {**common, "n": num_openings, "num_groups": num_openings, "details": details}
    units = resampled(metric, steered_grid, rules)
    spread = with_direction_spread(excess, nulls_NR, *units, rules.seed, rules.level)
    interval = opening_interval(spread[1:], *units, rules.level)
    above = int((nulls_NR[:, 0] >= value[0]).sum())
    return [
        Measure.of(f"{metric}.excess", excess[0], interval, **{**fields, "ci_method": EXCESS_CI_METHOD}),
        Measure.of(f"{metric}.null_rank", 1.0 + above, **fields),
        Measure.of(f"{metric}.null_p95", float(np.percentile(nulls_NR[:, 0], 95)), **fields),
    ]


def or_zeros(figure: Callable[[], np.ndarray], length: int) -> np.ndarray:
    """Return a null direction's figure [length]: 0 where its curve is flat or no strength leaves its texts fluent."""
    try:
        return np.nan_to_num(figure(), nan=0.0)
    except CellError:
        return np.zeros(length)


def opening_weights(grid: ResponseGrid, rules: SteeringRules) -> np.ndarray:
    """Return bootstrap counts of the openings [R, P], drawn within each half so that neither is ever empty."""
    weights = np.zeros((rules.num_bootstrap, len(grid.openings)))
    for offset, half in enumerate(halves(len(grid.openings), rules.seed)):
        weights[:, half] = bootstrap_counts(len(half), rules.num_bootstrap, rules.seed + offset)
    return weights


def resampled(metric: str, grid: ResponseGrid, rules: SteeringRules) -> tuple[int, int]:
    """Return how many openings a metric is resampled over, and the strata that they are drawn within."""
    num_openings = len(grid.openings)
    read_on_half = metric == "d2.best_gain"
    return (len(halves(num_openings, rules.seed)[1]), 1) if read_on_half else (num_openings, 2)


def _value(
    metric: str,
    statistic: CurveStatistic,
    grid: ResponseGrid,
    weights: np.ndarray,
    rules: SteeringRules,
    common: dict[str, Any],
) -> Measure:
    try:
        value = statistic(grid, np.ones((1, len(grid.openings))), rules)[0]
    except CellError as error:
        return Measure.failed(metric, error, **common)
    if not np.isfinite(value):
        return _flat(metric, common)
    interval = opening_interval(statistic(grid, weights, rules), *resampled(metric, grid, rules), rules.level)
    return Measure.of(metric, value, interval, **common)


def _best_strength(grid: ResponseGrid, rules: SteeringRules, common: dict[str, Any]) -> Measure:
    """Return the strength of `d2.best_gain`; its details hold the gain on the half it was chosen on.

    Choosing strategies by that gain, and reading them on the other half, avoids a winner's curse.
    """
    choose, _ = halves(len(grid.openings), rules.seed)
    half = grid.at_openings(choose)
    try:
        column = best_column(half, rules)
    except CellError as error:
        return Measure.failed("d2.best_strength", error, **common)
    gain = gain_at(half, column, np.ones((1, len(choose))))[0]
    details = {"gain_where_chosen": float(gain)}
    return Measure.of("d2.best_strength", float(grid.strengths[column]), **common, details=details)


def _fluency(grid: ResponseGrid, weights: np.ndarray, rules: SteeringRules, common: dict[str, Any]) -> Measure:
    column = grid.column(rules.reference_strength)
    value = perplexity_ratio(grid, np.ones((1, len(grid.openings))))[0, column]
    interval = opening_interval(fluency(grid, weights, rules), *resampled("d2.fluency", grid, rules), rules.level)
    return Measure.of("d2.fluency", value, interval, **common)


def _flat(metric: str, common: dict[str, Any]) -> Measure:
    return Measure.null(metric, Status.NO_EFFECT, "the mean score is the same at every strength", **common)


def _common_fields(grid: ResponseGrid, rules: SteeringRules, direction: str, scorer: GatedScorer) -> dict[str, Any]:
    openings = len(grid.openings)
    fields = {"direction": direction, "scorer": scorer.concept, "n": openings, "num_groups": openings}
    return {**fields, "seed": rules.seed, "ci_method": CI_METHOD}
