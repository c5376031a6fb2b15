"""D2: how far steering along a direction moves its concept's score, beyond what null directions do."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from poolbench.contracts import Row
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.response import (
    ResponseGrid,
    align_openings,
    best_column,
    fluent_strengths,
    mean_scores,
    perplexity_ratio,
    response_grids,
    single_grid,
)
from poolbench.statuses import Status
from poolbench_driver.measures.response import (
    CURVE_STATISTICS,
    PUBLISHED_STATISTICS,
    CurveStatistic,
    SteeringRules,
    curve_grid,
    curve_params,
    expanded_level,
    fluency,
    gain_at,
    opening_interval,
    or_zeros,
    with_direction_spread,
)
from poolbench_driver.suites.poolbench.steering_results import CellTexts

CI_METHOD = "paired bootstrap over openings, expanded percentile"
EXCESS_CI_METHOD = "paired bootstrap over openings, expanded percentile, with the spread of null directions"
_SUFFIXES = (".excess", ".null_rank", ".null_p95")
D2_METRICS = (
    *(metric + suffix for metric in CURVE_STATISTICS for suffix in ("", *_SUFFIXES)),
    "d2.best_strength",
    "d2.fluency",
)


def d2_measures(
    texts: CellTexts | CellError,
    scorer: GatedScorer,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
) -> list[Measure]:
    """Return all D2 figures of one (concept, strategy): values, and their excess over the null directions.

    Args:
        texts: Texts along the strategy's direction, unsteered texts of the same openings, and texts along the null
            directions. An error in their place makes every figure null.
        scorer: The scorer of the concept. An invalid scorer makes every figure null with the status of the scorer.
        rules: Settings.

    Returns:
        Measures in the order of D2_METRICS. A measure that cannot be computed is null, with a status and a reason.
        Without null directions, the measures that compare with null directions are absent.
    """
    try:
        if isinstance(texts, CellError):
            raise texts
        scorer.require_valid()
        grid, null_grids = _grids(texts, scorer.concept, rules)
    except CellError as error:
        nulls = [Measure.failed(name, error, params=curve_params(name, rules)) for name in D2_METRICS]
        return [measure.with_fields(direction=rules.direction, scorer=scorer.concept) for measure in nulls]
    weights = opening_weights(grid, rules)
    measures = []
    for metric, statistic in CURVE_STATISTICS.items():
        measures.append(_value(metric, statistic, grid, rules))
        if null_grids:
            measures += excess_measures(metric, statistic, grid, null_grids, rules)
    column = grid.column(rules.reference_strength)
    value = perplexity_ratio(grid, np.ones((1, len(grid.openings))))[0, column]
    interval = opening_interval(fluency(grid, weights, rules), *resampled("d2.fluency", grid), rules.level)
    measures += [_best_strength(grid, rules), Measure.of("d2.fluency", value, interval, ci_method=CI_METHOD)]
    return [
        measure.with_fields(
            direction=rules.direction,
            scorer=scorer.concept,
            n=measure.n or resampled(measure.metric, grid)[0],
            num_groups=measure.num_groups or resampled(measure.metric, grid)[0],
            seed=rules.seed,
        )
        for measure in measures
    ]


def _grids(texts: CellTexts, scorer: str, rules: SteeringRules) -> tuple[ResponseGrid, list[ResponseGrid]]:
    """Return the grid of the steered texts, and one grid per null direction. Raise CellError without steered texts."""
    grid = single_grid(texts.steered, texts.unsteered, scorer, rules.seed)
    nulls = {} if texts.nulls is None else response_grids(texts.nulls, texts.unsteered, scorer, rules.seed)
    return grid, list(nulls.values())


def excess_measures(
    metric: str,
    statistic: CurveStatistic,
    grid: ResponseGrid,
    null_grids: Sequence[ResponseGrid],
    rules: SteeringRules,
) -> list[Measure]:
    """Return a figure minus the mean of the null directions, its rank among them, and their 95th percentile.

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
        return [Measure.failed(metric + suffix, error) for suffix in _SUFFIXES]
    nulls_NR = np.array([or_zeros(partial(statistic, other, weights, rules), len(weights)) for other in others])
    if not np.isfinite(value[0]):
        return [_flat(metric + suffix) for suffix in _SUFFIXES]
    excess = value - nulls_NR.mean(axis=0)
    details = {
        "value_at_null_strengths": float(value[0]),
        "null_mean": float(nulls_NR[:, 0].mean()),
        "null_sd": float(nulls_NR[:, 0].std(ddof=1)) if len(others) > 1 else None,
        "num_nulls": len(others),
        "percentile": float(100 * (nulls_NR[:, 0] < value[0]).mean()),
    }
    units = resampled(metric, steered_grid)
    spread = with_direction_spread(excess, nulls_NR, *units, rules.seed, rules.level)
    interval = opening_interval(spread[1:], *units, rules.level)
    above = int((nulls_NR[:, 0] >= value[0]).sum())
    measures = [
        Measure.of(f"{metric}.excess", excess[0], interval, ci_method=EXCESS_CI_METHOD),
        Measure.of(f"{metric}.null_rank", 1.0 + above),
        Measure.of(f"{metric}.null_p95", float(np.percentile(nulls_NR[:, 0], 95))),
    ]
    return [measure.with_fields(n=units[0], num_groups=units[0], details=details) for measure in measures]


def opening_weights(grid: ResponseGrid, rules: SteeringRules) -> np.ndarray:
    """Return bootstrap counts of the openings [R, P], drawn within each half so that no half is ever empty."""
    weights = np.zeros((rules.num_bootstrap, len(grid.openings)))
    for offset, half in enumerate(grid.halves):
        if half.size:
            weights[:, half] = bootstrap_counts(len(half), rules.num_bootstrap, rules.seed + offset)
    return weights


def resampled(metric: str, grid: ResponseGrid) -> tuple[int, int]:
    """Return the number of openings that a metric is read on, and the number of strata in which they are resampled."""
    choose, read = grid.halves
    if metric == "d2.best_strength":
        return len(choose), 1
    if metric.startswith("d2.best_gain"):
        return len(read), 1
    return len(grid.openings), sum(half.size > 0 for half in grid.halves)


def _value(metric: str, statistic: CurveStatistic, grid: ResponseGrid, rules: SteeringRules) -> Measure:
    """Return a figure with its interval.

    A figure of a whole curve is computed on the openings that have texts at every strength.
    """
    if params := curve_params(metric, rules):
        grid = curve_grid(grid, rules)
    num_openings = len(grid.openings)
    try:
        value = statistic(grid, np.ones((1, num_openings)), rules)[0]
    except CellError as error:
        return Measure.failed(metric, error, params=params)
    if np.isfinite(value):
        samples = statistic(grid, opening_weights(grid, rules), rules)
        interval = opening_interval(samples, *resampled(metric, grid), rules.level)
        measure = Measure.of(metric, value, interval, ci_method=CI_METHOD)
    else:
        measure = _flat(metric)
    num_read, _ = resampled(metric, grid)
    return measure.with_fields(n=num_read, num_groups=num_read, params=params)


def _best_strength(grid: ResponseGrid, rules: SteeringRules) -> Measure:
    """Return the strength of `d2.best_gain`. The details hold the gain on the half that chose this strength.

    Choosing strategies by this gain, and measuring the chosen strategies on the other half, avoids a winner's curse.
    """
    choose, _ = grid.halves
    half = grid.at_openings(choose)
    try:
        column = best_column(half, rules)
    except CellError as error:
        return Measure.failed("d2.best_strength", error)
    gain = gain_at(half, column, np.ones((1, len(choose))))[0]
    return Measure.of("d2.best_strength", float(grid.strengths[column]), details={"gain_where_chosen": float(gain)})


def _flat(metric: str) -> Measure:
    return Measure.null(metric, Status.NO_EFFECT, "the mean score is the same at every strength")


def published_d2(
    texts: CellTexts | CellError,
    scorer: GatedScorer,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
) -> list[Measure]:
    """Return `d2.scp` and `d2.scp_1` of one (concept, strategy) as the card defines these metrics.

    The scorer is used even if it fails its gate. There are no intervals and no null directions.
    """
    measures, num_openings = list[Measure](), None
    try:
        if isinstance(texts, CellError):
            raise texts
        scorer.require_trained()
        grid = single_grid(texts.steered, texts.unsteered, scorer.concept, rules.seed)
        num_openings = len(grid.openings)
        for metric, value in published_values(grid, rules).items():
            if np.isfinite(value):
                measures.append(Measure.of(metric, value))
            else:
                reason = f"the mean score of {scorer.concept} is the same at every strength"
                measures.append(Measure.null(metric, Status.NO_EFFECT, reason))
    except CellError as error:
        measures = [Measure.failed(metric, error) for metric in PUBLISHED_STATISTICS]
    return [
        measure.with_fields(direction=rules.direction, scorer=scorer.concept, n=num_openings, num_groups=num_openings)
        for measure in measures
    ]


def published_values(grid: ResponseGrid, rules: SteeringRules) -> dict[str, float]:
    """Return the statistics that the card defines for a response curve, by metric."""
    ones = np.ones((1, len(grid.openings)))
    return {metric: float(statistic(grid, ones, rules)[0]) for metric, statistic in PUBLISHED_STATISTICS.items()}


def response_curve(texts: CellTexts, scorer: GatedScorer, rules: SteeringRules) -> list[Row]:
    """Return the response curve of one (concept, strategy), on the openings that have texts at every strength.

    If too few openings are complete, return an empty list.

    Returns:
        One row per strength: direction, scorer, n (openings), strength, score, ci_low, ci_high, gain (score minus
        unsteered), perplexity_ratio, repeated_4grams, fluent, and null_low, null_mean, null_high: 5th percentile, mean
        and 95th percentile of the null directions' mean scores (null if not run).
    """
    try:
        grid, null_grids = _grids(texts, scorer.concept, rules)
    except CellError:
        return []
    grid, *null_grids = (curve_grid(part, rules) for part in (grid, *null_grids))
    by_strength: dict[float, list[float]] = {}
    for null_grid in null_grids:
        for strength, score in zip(null_grid.strengths.round(9).tolist(), null_grid.score.mean(axis=0), strict=True):
            by_strength.setdefault(strength, []).append(float(score))
    band = {}
    for strength, scores in by_strength.items():
        low, high = np.percentile(scores, [5, 95])
        band[strength] = {"null_low": float(low), "null_mean": float(np.mean(scores)), "null_high": float(high)}
    columns = _curve_columns(grid, rules)
    identity = {"direction": rules.direction, "scorer": scorer.concept, "n": len(grid.openings)}
    no_band = {"null_low": None, "null_mean": None, "null_high": None}
    return [
        {**identity, **{name: values[s].item() for name, values in columns.items()}, **band.get(key, no_band)}
        for s, key in enumerate(grid.strengths.round(9).tolist())
    ]


def _curve_columns(grid: ResponseGrid, rules: SteeringRules) -> dict[str, np.ndarray]:
    ones = np.ones((1, len(grid.openings)))
    score = mean_scores(grid, ones)[0]
    tail = 50 * (1 - expanded_level(*resampled("curve", grid), rules.level))
    low, high = np.percentile(mean_scores(grid, opening_weights(grid, rules)), [tail, 100 - tail], axis=0)
    return {
        "strength": grid.strengths,
        "score": score,
        "ci_low": low,
        "ci_high": high,
        "gain": score - score[0],
        "perplexity_ratio": perplexity_ratio(grid, ones)[0],
        "repeated_4grams": grid.repeated.mean(axis=0),
        "fluent": fluent_strengths(grid, rules),
    }
