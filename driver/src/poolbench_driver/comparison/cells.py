"""Which cells two runs have in common, and which changed in presence or status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from poolbench.contracts.results import IDENTITY
from poolbench_driver.comparison.pairing import Pairing, Row

#: Values this close are the same result: recomputed D1 must agree within it.
SAME_VALUE = 1e-6


def cell_counts(pairing: Pairing) -> dict[str, int]:
    """Common cells, those of one run alone, and those whose status or value changed."""
    return {
        "common": len(pairing.common),
        "only_first": len(pairing.only_first),
        "only_second": len(pairing.only_second),
        "changed_status": sum(a["status"] != b["status"] for a, b in pairing.common),
        "changed_value": sum(abs(b["value"] - a["value"]) > SAME_VALUE for a, b in measured_pairs(pairing)),
    }


def measured_pairs(pairing: Pairing) -> list[tuple[Row, Row]]:
    """The common cells with a value in both runs."""
    return [(a, b) for a, b in pairing.common if a["value"] is not None and b["value"] is not None]


def cells_of_one_run(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Unpaired cells of one run by metric: how many, of which strategies, and in what the other run's cells differ."""
    found = []
    for metric in sorted({row["metric"] for row in rows}):
        own = [row for row in rows if row["metric"] == metric]
        there = [row for row in others if row["metric"] == metric]
        names = sorted({row["strategy"] or "" for row in own})
        shown = ", ".join(names) if len(names) <= 3 else f"{len(names)} strategies"
        found.append({"metric": metric, "strategies": shown, "cells": len(own), "why": _why(own, there)})
    return found


def _why(own: Sequence[Row], there: Sequence[Row]) -> str:
    if not there:
        return "not measured there"
    sides = {name: ({row[name] for row in own}, {row[name] for row in there}) for name in IDENTITY}
    if sides.pop("strategy")[0].isdisjoint({row["strategy"] for row in there}):
        return "not measured there for these strategies"
    apart = [f"{name} {_shown(a)} here, {_shown(b)} there" for name, (a, b) in sides.items() if a.isdisjoint(b)]
    return "; ".join(apart) or "other strategies, concepts or settings"


def _shown(values: set[Any]) -> str:
    return ", ".join(sorted(map(str, values))[:3])


def status_changes(pairing: Pairing) -> list[Row]:
    """Changes of status by metric and strategy, counted, with an example of the new reason."""
    counts: Counter[tuple[str, ...]] = Counter()
    reasons: dict[tuple[str, ...], str] = {}
    for a, b in pairing.common:
        if a["status"] != b["status"]:
            key = (a["metric"], a["strategy"] or "", a["status"], b["status"])
            counts[key] += 1
            reasons.setdefault(key, b["reason"] or a["reason"] or "")
    names = ("metric", "strategy", "from", "to")
    return [
        {**dict(zip(names, key, strict=True)), "cells": count, "reason": reasons[key]}
        for key, count in sorted(counts.items())
    ]
