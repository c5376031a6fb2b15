"""Read tables that others recorded. Every error names file and line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from poolbench.errors import InputError, shown
from poolbench_corpora.reading import name_in, records

#: Cells that stand for a missing number, in lower case.
MISSING = frozenset(("", "nan", "na", "n/a", "none", "null"))


@dataclass(frozen=True)
class Line:
    """A line of a table: its cells by column, without surrounding spaces; "" for a missing one."""

    where: str  # file and line, as errors name it
    cells: dict[str, str]

    def number(self, column: str) -> float:
        """Return the number in a column, NaN if it is missing. Raise InputError for anything else."""
        cell = self.cells[column]
        if cell.lower() in MISSING:
            return math.nan
        try:
            value = float(cell)
        except ValueError:
            value = math.inf
        if math.isinf(value):
            raise InputError(
                f"{self.where}, column {shown(column)}: {shown(cell)} is not a number; leave it empty if missing"
            )
        return value


def read_csv(file: Path, required: Iterable[str] = ()) -> tuple[list[str], list[Line]]:
    """Return the columns of a table, and its rows; blank ones are left out.

    Args:
        file: A CSV, or another table; columns are in any order.
        required: Columns that it must have.

    Raises:
        InputError: With file and line: the table cannot be read, is empty, or lacks a column.
    """
    head: list[str] = []
    lines: list[Line] = []
    for where, values in records(file):
        if not lines:
            head = list(map(str, values))
            if lacking := [name for name in required if name not in head]:
                columns = ", ".join(map(shown, head[:8])) or "none"
                raise InputError(
                    f"{file}, line 1: no column {', '.join(map(shown, lacking))}; the first columns are {columns}"
                )
        cells = {name: name_in(values, name, where) for name in head}
        if any(cells.values()):
            lines.append(Line(where, cells))
    if not lines:
        raise InputError(f"{file} is empty: all its lines are blank")
    return head, lines
