"""Compared cells and checks as rows of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from statistics import fmean, median

from poolbench.contracts import Row
from poolbench_driver.suites.poolbench.reproduction.cells import ComparedCell


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
