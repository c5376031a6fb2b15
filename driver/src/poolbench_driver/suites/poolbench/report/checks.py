"""Checks for the reader: each concept's best cell and its nulls, and coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from poolbench_driver.suites.poolbench.report.answer import equal_to, some
from poolbench_driver.suites.poolbench.report.means import by_strategy

Row = dict[str, Any]

#: Checks of a concept whose reason is shown.
FLAGGED = ("d1.saturation", "d1.alarms")


def concept_checks(rows: Sequence[Row]) -> list[Row]:
    """Return the checks that a reader can make by eye, one line per concept.

    The best strategy is that of the answer: the one with the highest mean over layers, or all that are equal.
    """
    lines = []
    for concept in sorted({row["concept"] for row in rows if row["strategy"] and row["concept"]}):
        own = [row for row in rows if row["concept"] == concept and row["value"] is not None]
        permuted = [row["value"] for row in own if row["metric"] == "d1.auroc_permuted"]
        lines.append(
            {
                "concept": concept,
                "best": _best(row for row in rows if row["concept"] == concept),
                "permuted": fmean(permuted) if permuted else None,
                "flags": [
                    f"layer {row['layer']} {row['reason']}" for row in own if row["metric"] in FLAGGED and row["reason"]
                ],
                **_gain_check(own),
            }
        )
    return lines


def _best(rows: Iterable[Row]) -> Row | None:
    """Return the strategies with the highest mean D1 over layers, and that mean; None if no strategy has it on all."""
    cells = by_strategy(row for row in rows if row["metric"] == "d1.auroc")
    values = {name: [row["value"] for row in own] for (name, _), own in cells.items()}
    means = {name: fmean(own) for name, own in values.items() if None not in own}
    if not means:
        return None
    best = max(means, key=lambda name: means[name])
    return {"strategy": some(equal_to(best, means), "strategies"), "value": means[best]}


def _gain_check(rows: Sequence[Row]) -> Row:
    """Return the gain of the strategy that was best on the openings it was chosen on, read on the others."""
    chosen = max(
        _of_metric(rows, "d2.best_strength"), key=lambda row: row["details"]["gain_where_chosen"], default=None
    )
    if chosen is None:
        return {}
    same = {row["metric"]: row for row in rows if row["strategy"] == chosen["strategy"]}
    excess = same.get("d2.best_gain.excess")
    if excess is None:
        return {}
    return {
        "strategy": chosen["strategy"],
        "gain": excess["details"]["value_at_null_strengths"],
        "null_p95": same["d2.best_gain.null_p95"]["value"],
        "null_rank": same["d2.best_gain.null_rank"]["value"],
    }


def _of_metric(rows: Sequence[Row], metric: str) -> list[Row]:
    return [row for row in rows if row["metric"] == metric]


def coverage(rows: Sequence[Row], order: Sequence[str]) -> list[Row]:
    lines = []
    for name in order:
        cells = [r for r in rows if r["strategy"] == name and r["metric"] == "d1.auroc" and r["coverage"] is not None]
        if cells:
            shares = [row["coverage"] for row in cells]
            lines.append({"strategy": name, "mean": fmean(shares), "lowest": min(shares)})
    return lines


def sinks(rows: Sequence[Row]) -> list[Row]:
    """Return, by layer, the share of passages with attention sinks, and the most tokens that a strategy left out."""
    found = [row for row in rows if row["metric"].startswith("sinks.")]
    lines = []
    for layer in sorted({row["layer"] for row in found}):
        own = [row for row in found if row["layer"] == layer]
        shares = [row["value"] for row in own if row["metric"] == "sinks.passages"]
        left_out: Counter[str] = Counter()
        for row in _of_metric(own, "sinks.left_out"):
            left_out[row["strategy"]] += int(row["value"])
        lines.append({"layer": layer, "passages": fmean(shares), "left_out": max(left_out.values())})
    return lines
