"""Checks for the reader: each concept's best cell and its nulls, and coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from poolbench.contracts import Row

#: Checks of a concept whose reason is shown.
FLAGGED = ("d1.saturation", "d1.alarms")


def concept_checks(rows: Sequence[Row], leaders: Mapping[str, Row]) -> list[Row]:
    """Return the checks that a reader can make by eye, one line per concept; `leaders` are the best by concept."""
    lines = []
    for concept in sorted({row["concept"] for row in rows if row["strategy"] and row["concept"]}):
        concept_rows = [row for row in rows if row["concept"] == concept and row["value"] is not None]
        permuted = [row["value"] for row in concept_rows if row["metric"] == "d1.auroc_permuted"]
        lines.append(
            {
                "concept": concept,
                "best": leaders.get(concept),
                "permuted": fmean(permuted) if permuted else None,
                "flags": [
                    f"layer {row['layer']} {row['reason']}"
                    for row in concept_rows
                    if row["metric"] in FLAGGED and row["reason"]
                ],
                **_gain_check(concept_rows),
            }
        )
    return lines


def _gain_check(rows: Sequence[Row]) -> Row:
    """Return the gain of the strategy that was best on the openings it was chosen on, read on the others."""
    best = max(_of_metric(rows, "d2.best_strength"), key=lambda row: row["details"]["gain_where_chosen"], default=None)
    if best is None:
        return {}
    same = {row["metric"]: row for row in rows if row["strategy"] == best["strategy"]}
    excess = same.get("d2.best_gain.excess")
    if excess is None:
        return {}
    return {
        "strategy": best["strategy"],
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
    sink_rows = [row for row in rows if row["metric"].startswith("sinks.")]
    lines = []
    for layer in sorted({row["layer"] for row in sink_rows}):
        layer_rows = [row for row in sink_rows if row["layer"] == layer]
        shares = [row["value"] for row in layer_rows if row["metric"] == "sinks.passages"]
        left_out: Counter[str] = Counter()
        for row in _of_metric(layer_rows, "sinks.left_out"):
            left_out[row["strategy"]] += int(row["value"])
        lines.append({"layer": layer, "passages": fmean(shares), "left_out": max(left_out.values())})
    return lines
