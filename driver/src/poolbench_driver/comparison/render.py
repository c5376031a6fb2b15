"""The changes between two runs as tables for a terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from poolbench.statuses import Status
from poolbench_driver.comparison.changes import RunChanges
from poolbench_driver.comparison.pairing import SAME_VALUE

Row = dict[str, Any]
Titled = tuple[str, Sequence[str], list[Row]]

#: Level of the tests behind a verdict.
LEVEL = 0.05

_UNPAIRED = ("metric", "strategies", "cells", "why")
_VALUE = ("metric", "strategy", "first", "second", "difference", "95 % interval", "p", "p (Holm)", "concepts", "")
_RANK = ("metric", "strategy", "first", "second", "change", "95 % interval", "concepts")


def as_tables(changes: RunChanges, *, everything: bool = False) -> list[Titled]:
    """Return title, columns and rows of every table that is not empty.

    Args:
        everything: Also lines of values and ranks that stayed the same.
    """
    values = [row for row in changes.values if everything or _moved(row, "difference")]
    ranks = [row for row in changes.ranks if everything or row["change"] is None or _moved(row, "change")]
    agreement = [
        {**row, "value": _number(row["value"], 3), "95 % interval": _interval(row)} for row in changes.agreement
    ]
    tables: list[Titled] = [
        (
            "cells",
            ("what", "cells"),
            [{"what": name.replace("_", " "), "cells": n} for name, n in changes.summary.items()],
        ),
        ("only in the first run", _UNPAIRED, changes.only_first),
        ("only in the second run", _UNPAIRED, changes.only_second),
        ("changed status", ("metric", "strategy", "from", "to", "cells", "reason"), changes.statuses),
        ("values, second minus first, over concepts", _VALUE, [_value(row) for row in values]),
        ("mean ranks over the common cells, 1 is best", _RANK, [_rank(row) for row in ranks]),
        (
            "agreement of mean ranks, Spearman",
            ("metric", "value", "95 % interval", "num_strategies", "status"),
            agreement,
        ),
    ]
    return [table for table in tables if table[2]]


def as_markdown(tables: Iterable[Titled], first: str, second: str) -> str:
    """Return the tables as Markdown under one heading."""
    parts = [f"# {first} against {second}"]
    for title, columns, rows in tables:
        lines = [list(columns), ["---"] * len(columns), *([str(row.get(c, "")) for c in columns] for row in rows)]
        parts.append(f"\n## {title.capitalize()}\n")
        parts.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines))
    return "\n".join(parts)


def _moved(row: Row, name: str) -> bool:
    return abs(row[name]) > SAME_VALUE


def _value(row: Row) -> Row:
    shown = {name: _number(row[name], 4) for name in ("first", "second", "difference")}
    p_values = {"p": _number(row["p"], 3), "p (Holm)": _number(row["p_holm"], 3)}
    return {**row, **shown, **p_values, "95 % interval": _interval(row, 4), "": _verdict(row)}


def _verdict(row: Row) -> str:
    """Return better or worse where the metric has a direction, the interval excludes 0 and the corrected test agrees.

    The interval alone is no verdict: over a handful of concepts it is too narrow, and the strategies are many.
    """
    better, low, high = row["higher_is_better"], row["ci_low"], row["ci_high"]
    p = row["p"] if row["p_holm"] is None else row["p_holm"]
    if better is None or low is None or low <= 0 <= high or p > LEVEL:
        return ""
    return "better" if (low > 0) == better else "worse"


def _rank(row: Row) -> Row:
    shown = {name: _number(row[name], 2) for name in ("first", "second", "change")}
    return {**row, **shown, "95 % interval": _interval(row, 2) or row["status"].replace(Status.OK, "")}


def _interval(row: Row, decimals: int = 3) -> str:
    low, high = row["interval"] or (None, None) if "interval" in row else (row["ci_low"], row["ci_high"])
    return "" if low is None else f"{low:z.{decimals}f} to {high:z.{decimals}f}"


def _number(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:z.{decimals}f}"
