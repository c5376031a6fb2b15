"""The rows of ``published.parquet`` beside the corrected ones: means by strategy, shown and never ranked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from poolbench_driver.report.means import Cells, MeansTable, by_strategy, mean_text, mean_value

Row = dict[str, Any]

METRICS = ("d1.auroc", "d2.scp", "d2.scp_1", "d3.ld", "d3.lc")
#: What the lines are ordered by.
FIRST = "d1.auroc"
#: By metric the SCPs of its published columns; an empty text where it has none.
Readings = dict[str, list[str]]


def build_published(published: Iterable[Row] | None, rows: Iterable[Row], order: Sequence[str]) -> MeansTable | None:
    """Published and corrected means of the metrics that both have.

    Args:
        published: Rows of ``published.parquet``; None where a run has no such table.
        rows: Rows of ``results.parquet``.
        order: Strategies as elsewhere on the page, which settles what the published AUROC leaves open.
    """
    corrected = by_strategy(row for row in rows if row["metric"] in METRICS)
    theirs = by_strategy(published or ())
    readings = _readings(theirs, {metric for _, metric in corrected})
    present = [name for name in order if any((name, metric) in theirs for metric in readings)]
    strategies = sorted(present, key=lambda name: -_first(theirs, name))
    if not strategies:
        return None
    groups = [(metric, [*map(_head, scps), "corrected"]) for metric, scps in readings.items()]
    return MeansTable(
        heads=[head for _, heads in groups for head in heads],
        lines=[(name, _line(name, readings, theirs, corrected)) for name in strategies],
        groups=groups,
    )


def _readings(theirs: Cells, corrected: set[str]) -> Readings:
    """By metric its published columns: D3 has one for either reading of SCP."""
    found: Readings = {}
    for metric in METRICS:
        scps = dict.fromkeys(_scp(row) for (_, m), rows in theirs.items() if m == metric for row in rows)
        if scps and metric in corrected:
            found[metric] = sorted(scps)
    return found


def _scp(row: Row) -> str:
    return str(json.loads(row["params"]).get("scp", ""))


def _head(scp: str) -> str:
    return f"published ({scp})" if scp else "published"


def _line(name: str, readings: Readings, theirs: Cells, corrected: Cells) -> list[str]:
    cells: list[str] = []
    for metric, scps in readings.items():
        rows = theirs.get((name, metric), [])
        cells += [mean_text(row for row in rows if _scp(row) == scp) for scp in scps]
        cells.append(mean_text(corrected.get((name, metric), [])))
    return cells


def _first(theirs: Cells, strategy: str) -> float:
    """What the lines are ordered by: the published AUROC, below all others where there is none."""
    mean = mean_value(theirs.get((strategy, FIRST), []))
    return float("-inf") if mean is None else mean
