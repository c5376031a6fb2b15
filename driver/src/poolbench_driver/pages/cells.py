"""Cells and spans as most suites write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from poolbench_driver.contract.page import Cell, Span
from poolbench_driver.pages.markdown import interval


def number(value: float | None, spec: str = ".3f", note: str = "") -> Cell:
    """Return a number; an empty cell where there is none."""
    return Cell("" if value is None else f"{value:{spec}}", value, note=note)


def figure(row: Mapping[str, Any] | None, spec: str = ".3f") -> Cell:
    """Return the value of a result row with its interval, or its status with the reason; empty without a row."""
    if not row:
        return Cell()
    if row["value"] is None:
        return Cell(row["status"], note=row["reason"] or "")
    ends = row["ci_low"], row["ci_high"]
    return Cell(f"{row['value']:{spec}}", row["value"], *ends, interval(ends, spec))


def spans(sentence: str, names: Iterable[str]) -> list[Span]:
    """Return a sentence in pieces, with every name in a piece of its own."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    if not longest_first:
        return [Span(sentence)]
    pieces = re.split(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?!\w)", sentence)
    return [Span(piece, number % 2 == 1) for number, piece in enumerate(pieces) if piece]
