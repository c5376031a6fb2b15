"""Winning rates of entrants from their scores on probing sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statistics.winning_rate import published_winning_rate, winning_rate_resamples
from poolbench.statuses import Status
from poolbench_driver.suites.holmes.metrics import RATE, SCORE

CI_METHOD = "cluster bootstrap over phenomena, percentile"


def winning_rates(
    rows: Sequence[Row],
    phenomena: Mapping[str, str],
    types: Mapping[str, str],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Iterator[Row]:
    """Yield the mean winning rate of each entrant, over all sets and over those of each type.

    Intervals come from a bootstrap over phenomena, because sets of one phenomenon are not independent.
    """
    entrants, sets, values_MN = score_matrix(rows)
    for kind in ("", *sorted(set(types.values()))):
        columns = [number for number, name in enumerate(sets) if not kind or types[name] == kind]
        groups = np.array([phenomena[sets[number]] for number in columns])
        weights_RN = np.concatenate([np.ones((1, len(groups))), group_weights(groups, num_resamples, seed)])
        for entrant, measure in zip(entrants, _rates(values_MN[:, columns], weights_RN, groups, kind), strict=True):
            yield {**measure.to_row(), **_of_entrant(rows, entrant)}


def measured_widely(rows: Sequence[Row]) -> set[str]:
    """Return the entrants that have a score on at least half of the sets; others are never said to lead."""
    entrants, _, values_MN = score_matrix(rows)
    return {name for name, values_N in zip(entrants, values_MN, strict=True) if np.isfinite(values_N).mean() >= 0.5}


def published_rates(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield winning rates as the public leaderboard computes them, scaled by set (`row`) or by entrant (`column`)."""
    entrants, sets, values_MN = score_matrix(rows)
    scales: tuple[Literal["row", "column"], ...] = ("row", "column")
    for scale in scales if len(entrants) > 1 else ():
        for entrant, rate in zip(entrants, published_winning_rate(values_MN, scale), strict=True):
            metric, n = f"{RATE}.{scale}", len(sets)
            measure = (
                Measure.of(metric, float(rate), None, n=n)
                if np.isfinite(rate)
                else Measure.null(metric, Status.COLLAPSED, "its ranks have no spread to scale by", n=n)
            )
            yield {**measure.to_row(), **_of_entrant(rows, entrant)}


def score_matrix(rows: Sequence[Row]) -> tuple[list[str], list[str], np.ndarray]:
    """Return entrants, sets, and the scores [entrants, sets], NaN where there is none."""
    scored = {(row["entrant"], row["task"]): row["value"] for row in rows if row["metric"] == SCORE}
    entrants, sets = list(dict.fromkeys(name for name, _ in scored)), sorted({name for _, name in scored})
    return entrants, sets, np.array([[scored.get((entrant, name)) for name in sets] for entrant in entrants], float)


def _of_entrant(rows: Sequence[Row], entrant: str) -> Row:
    """Return the columns of a figure of an entrant over several sets."""
    entrant_row = next(row for row in rows if row["entrant"] == entrant)
    identity = {name: entrant_row[name] for name in ("entrant", "layer", "strategy", "strategy_version")}
    return {**identity, "task": None, "params": {}}


def _rates(values_MN: np.ndarray, weights_RN: np.ndarray, groups: np.ndarray, kind: str) -> list[Measure]:
    """Return the winning rate of each entrant over some sets; the first row of the weights gives the value."""
    metric = f"{RATE}.{kind}" if kind else RATE
    fields: dict[str, Any] = {"n": values_MN.shape[1], "num_groups": len(set(groups))}
    if len(values_MN) < 2:
        reason = "one entrant: name several models, strategies or layers"
        return [Measure.null(metric, Status.TOO_FEW, reason, **fields) for _ in values_MN]
    rates = []
    for column in winning_rate_resamples(values_MN, weights_RN).T:
        if not np.isfinite(column[0]):
            rates.append(Measure.null(metric, Status.TOO_FEW, "no set that another entrant was measured on", **fields))
            continue
        interval = percentile_interval(column[1:]) if len(column) > 1 and len(set(groups)) > 1 else None
        rates.append(Measure.of(metric, float(column[0]), interval, ci_method=CI_METHOD, **fields))
    return rates
