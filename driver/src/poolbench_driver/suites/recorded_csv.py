"""Read csv files that others recorded. Every error names file and line."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from poolbench.errors import InputError, shown

#: Largest file that is read. The public tables have 1.4 MB.
MAX_BYTES = 64 * 2**20
#: Cells that stand for a missing number, in lower case.
MISSING = frozenset(("", "nan", "na", "n/a", "none", "null"))


@dataclass(frozen=True)
class Line:
    """A line of a csv file: its cells by column, without surrounding spaces."""

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
    """Return the columns of a csv file in UTF-8, and its lines after the head; blank lines are left out.

    Args:
        file: The file; its first line names the columns, in any order.
        required: Columns that it must have.

    Raises:
        InputError: The file is not there, too large, not text or empty; a column is missing or named twice; a line has
            another number of cells than the head.
    """
    text = text_of(file, MAX_BYTES)
    if not text.strip():
        raise InputError(f"{file} is empty; its first line must name the columns")
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        if lacking := [name for name in required if name not in head]:
            there = ", ".join(map(shown, head[:8])) or "none"
            raise InputError(
                f"{file}, line 1: no column {', '.join(map(shown, lacking))}; the first columns are {there}"
            )
        if twice := [name for name, count in Counter(head).items() if count > 1]:
            raise InputError(f"{file}, line 1: the column {shown(twice[0])} is there twice; keep one of them")
        lines = []
        for cells in reader:
            where = f"{file}, line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(head):
                raise InputError(f"{where}: {len(cells)} cells, but the head has {len(head)}")
            lines.append(Line(where, dict(zip(head, map(str.strip, cells), strict=True))))
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}: {error}") from None
    if not lines:
        raise InputError(f"{file}: no line after the head, so there is nothing to rank")
    return head, lines


def text_of(file: Path, max_bytes: int) -> str:
    """Return the text of a file in UTF-8. Raise InputError if it cannot be read, is larger or is not text."""
    try:
        if file.stat().st_size > max_bytes:
            raise InputError(f"{file} has {file.stat().st_size} bytes; at most {max_bytes} are read")
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}; a file that can be read is needed") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not text in UTF-8, at byte {error.start}") from None
