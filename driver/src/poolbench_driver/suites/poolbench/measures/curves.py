"""Compute response curves for `curves.parquet` and the report: one row per strength."""

from typing import Any

import numpy as np

from poolbench.contracts.gates import GatedScorer
from poolbench.errors import CellError
from poolbench_driver.suites.poolbench.measures.grids import ResponseGrid, SteeredTables, response_grids, single_grid
from poolbench_driver.suites.poolbench.measures.intervals import expanded_level
from poolbench_driver.suites.poolbench.measures.response import fluent_strengths, mean_scores, perplexity_ratio
from poolbench_driver.suites.poolbench.measures.rules import SteeringRules
from poolbench_driver.suites.poolbench.measures.steering import opening_weights


def curve_rows(
    steered: SteeredTables,
    unsteered: SteeredTables,
    nulls: SteeredTables | None = None,
    *,
    scorer: GatedScorer,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
    direction_key: str | None = None,
    direction: str = "C1",
) -> list[dict[str, Any]]:
    """Return the response curve of one (concept, strategy); empty if too few openings are complete.

    Returns:
        Rows with direction, scorer, strength, score, ci_low, ci_high, gain (score minus unsteered), perplexity_ratio,
        repeated_4grams, fluent, n (openings), and null_low, null_mean, null_high: 5th percentile, mean and 95th
        percentile of the null directions' mean scores (null if not run).
    """
    try:
        grid = single_grid(steered, unsteered, scorer.concept, direction_key)
        null_grids = response_grids(nulls, unsteered, scorer.concept) if nulls is not None else {}
    except CellError:
        return []
    band = _null_band(list(null_grids.values()))
    columns = _curve_columns(grid, rules)
    identity = {"direction": direction, "scorer": scorer.concept, "n": len(grid.openings)}
    no_band = {"null_low": None, "null_mean": None, "null_high": None}
    return [
        {**identity, **{name: values[s].item() for name, values in columns.items()}, **band.get(key, no_band)}
        for s, key in enumerate(grid.strengths.round(9).tolist())
    ]


def _curve_columns(grid: ResponseGrid, rules: SteeringRules) -> dict[str, np.ndarray]:
    ones = np.ones((1, len(grid.openings)))
    score = mean_scores(grid, ones)[0]
    tail = 50 * (1 - expanded_level(len(grid.openings), 2, rules.level))
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


def _null_band(grids: list[ResponseGrid]) -> dict[float, dict[str, float]]:
    by_strength: dict[float, list[float]] = {}
    for grid in grids:
        for strength, score in zip(grid.strengths.round(9).tolist(), grid.score.mean(axis=0), strict=True):
            by_strength.setdefault(strength, []).append(float(score))
    bands = {}
    for strength, scores in by_strength.items():
        low, high = np.percentile(scores, [5, 95])
        bands[strength] = {"null_low": float(low), "null_mean": float(np.mean(scores)), "null_high": float(high)}
    return bands
