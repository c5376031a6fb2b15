"""Each figure of a published table beside ours; a figure without a counterpart is null, with the reason."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

from poolbench.contracts import Row
from poolbench_driver.suites.poolbench.published_table import (
    OfficialModel,
    OfficialStrategy,
    PublishedColumn,
    PublishedTable,
)

#: How the source steered; figures made otherwise are other quantities.
STEERED_AS = {"alpha_unit": "absolute", "opening_set": "published-10", "direction": "C1"}


@dataclass(frozen=True)
class ComparedCell:
    """One figure of the table beside ours."""

    column: str
    strategy: str
    concept: str
    protocol: str
    metric: str
    our_strategy: str | None
    theirs: float | None
    ours: float | None = None
    difference: float | None = None  # ours minus theirs
    ci_low: float | None = None
    ci_high: float | None = None
    inside: bool | None = None  # whether theirs lies in our interval; None without an interval
    reason: str = ""  # why there is nothing to compare; empty where there is


class RunRows:
    """Rows of `results` and `published` of one run, by what identifies a cell.

    Args:
        corrected: Rows of `results.parquet`.
        published: Rows of `published.parquet`; None where the run has no such table.
    """

    def __init__(self, corrected: Iterable[Row], published: Iterable[Row] | None) -> None:
        self.has_published = published is not None
        self._rows: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in (*corrected, *(published or ())):
            if row["strategy"] and row["concept"]:
                self._rows[row["protocol"], row["metric"], row["strategy"], row["concept"]].append(row)

    def find(self, protocol: str, column: PublishedColumn, strategy: str, concept: str) -> list[Row]:
        """Return the rows of one cell: one per layer."""
        rows = self._rows.get((protocol, column.ours[protocol], strategy, concept), [])
        if protocol == "published" and column.scp:
            return [row for row in rows if json.loads(row["params"] or "{}").get("scp") == column.scp]
        return rows

    def has(self, **columns: str) -> bool:
        """Return whether any row has these values."""
        every = (row for rows in self._rows.values() for row in rows)
        return any(all(row[name] == value for name, value in columns.items()) for row in every)


def compare_cells(
    table: PublishedTable, model: OfficialModel, run: RunRows, columns: Sequence[str] = ()
) -> list[ComparedCell]:
    """Return the table's figures of a model beside ours, published definitions first.

    Args:
        columns: Only these columns of the table; all by default.
    """
    return [
        _compared(table, model, run, column, protocol, strategy, concept)
        for column in table.columns
        if not columns or column.id in columns
        for protocol in column.ours
        for strategy in table.strategies
        for concept in table.concepts
    ]


def _compared(
    table: PublishedTable,
    model: OfficialModel,
    run: RunRows,
    column: PublishedColumn,
    protocol: str,
    strategy: OfficialStrategy,
    concept: str,
) -> ComparedCell:
    theirs = table.values[model.name, strategy.id, concept, column.id]
    names = (column.id, strategy.id, concept, protocol, column.ours[protocol], strategy.ours, theirs)
    row, reason = _our_row(model, run, column, protocol, strategy, concept)
    if row is None:
        return ComparedCell(*names, reason=reason)
    ours, low, high = row["value"], row["ci_low"], row["ci_high"]
    if theirs is None:
        return ComparedCell(*names, ours, None, low, high, reason="null in the table")
    inside = None if low is None or high is None else low <= theirs <= high
    return ComparedCell(*names, ours, ours - theirs, low, high, inside)


def _our_row(
    model: OfficialModel, run: RunRows, column: PublishedColumn, protocol: str, strategy: OfficialStrategy, concept: str
) -> tuple[Row | None, str]:
    """Return our row of a cell, or why there is none."""
    if strategy.ours is None:
        return None, strategy.differs
    if protocol == "published" and not run.has_published:
        return None, "the run has no published figures; run it with --protocol published"
    rows = run.find(protocol, column, strategy.ours, concept)
    if not rows:
        return None, _absent(run, column.ours[protocol], strategy.ours, concept)
    at_layer = [row for row in rows if row["layer"] == model.best_layer]
    if not at_layer:
        layers = ", ".join(sorted({str(row["layer"]) for row in rows}))
        return None, f"the run has layer {layers}; the table's is {model.best_layer}"
    row = at_layer[0]
    if row["value"] is None:
        return None, f"{row['status']}: {row['reason'] or 'no value'}"
    if not column.id.startswith("D1_") and (other := _other_steering(row)):
        return None, other
    return row, ""


def _absent(run: RunRows, metric: str, strategy: str, concept: str) -> str:
    for name, value in (("strategy", strategy), ("concept", concept)):
        if not run.has(**{name: value}):
            return f"the run has no {name} {value}"
    return f"the run did not measure {metric}"


def _other_steering(row: Row) -> str:
    """Return how a row was steered otherwise than the table's; an empty text where it was not."""
    apart = [f"{name} {row[name]}, not {value}" for name, value in STEERED_AS.items() if row[name] not in (None, value)]
    return f"steered otherwise: {'; '.join(apart)}" if apart else ""


def summary_rows(cells: Iterable[ComparedCell]) -> list[Row]:
    """Return one row per column and protocol: how many cells are compared, and how far they lie apart."""
    rows = []
    for (column, protocol), group in groupby(cells, key=lambda cell: (cell.column, cell.protocol)):
        group_cells = list(group)
        differences = [cell.difference for cell in group_cells if cell.difference is not None]
        sizes = [abs(difference) for difference in differences]
        inside = [cell.inside for cell in group_cells if cell.inside is not None]
        rows.append(
            {
                "column": column,
                "protocol": protocol,
                "metric": group_cells[0].metric,
                "cells": len(group_cells),
                "compared": len(sizes),
                "mean difference": _number(fmean(differences) if differences else None),
                "median |difference|": _number(median(sizes) if sizes else None),
                "largest": _number(max(sizes, default=None)),
                "in our interval": f"{sum(inside)} of {len(inside)}" if inside else "",
                "mostly why not": _commonest(cell.reason for cell in group_cells),
            }
        )
    return rows


def cell_rows(cells: Iterable[ComparedCell], *, everything: bool = False) -> list[Row]:
    """Return one row per compared cell; with `everything` also the cells without a counterpart."""
    return [
        {
            "column": cell.column,
            "strategy": cell.strategy,
            "ours is": cell.our_strategy or "",
            "concept": cell.concept,
            "protocol": cell.protocol,
            "theirs": _number(cell.theirs),
            "ours": _number(cell.ours),
            "difference": _number(cell.difference),
            "95 % interval": "" if cell.ci_low is None else f"{cell.ci_low:z.5f} to {cell.ci_high:z.5f}",
            "theirs inside": {True: "yes", False: "no", None: ""}[cell.inside],
            "reason": cell.reason,
        }
        for cell in cells
        if everything or cell.difference is not None
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:z.5f}"


def _commonest(reasons: Iterable[str]) -> str:
    counts = Counter(filter(None, reasons))
    return "" if not counts else f"{counts.most_common(1)[0][0]} ({counts.most_common(1)[0][1]})"
