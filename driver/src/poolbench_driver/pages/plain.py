"""Cells as most pages write them, and the page that the frame makes of any run."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any
from urllib.parse import quote

import numpy as np

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.contract.page import Answer, Cell, Line, Page, Passage, Problem, Span, Table
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.pages.text import interval, listed
from poolbench_driver.statistics.ranks import best_first


def number(value: float | None, spec: str = ".3f", note: str = "") -> Cell:
    """Return the cell of a number, or an empty cell for None."""
    return Cell("" if value is None else f"{value:{spec}}", value, note=note)


def figure(row: Mapping[str, Any] | None, spec: str = ".3f") -> Cell:
    """Return the cell of a result row: value and interval, or status and reason. Without a row, the cell is empty."""
    if not row:
        return Cell()
    opens = figure_path(row)
    if row["value"] is None:
        return Cell(row["status"], note=row["reason"] or "", opens=opens)
    ends = row["ci_low"], row["ci_high"]
    return Cell(f"{row['value']:{spec}}", row["value"], *ends, interval(ends, spec), opens=opens)


def figures_by(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], dict[str, Row]]:
    """Return result rows by metric, for each combination of values of some columns. Other combinations give {}."""
    figures: dict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        figures[tuple(row[name] for name in columns)][row["metric"]] = row
    return figures


class HasFigures:
    """The subject of a line of a board, such as an entrant, with its result rows by metric."""

    figures: Mapping[str, Row]

    def value(self, metric: str) -> float | None:
        """Return the value of a metric, or None if it is null or was not measured."""
        value: float | None = self.figures.get(metric, {}).get("value")
        return value


def figure_path(row: Mapping[str, Any]) -> str:
    """Return the address of a result row's evidence, or "" if the row is not among the results."""
    return f"cells/{row['cell_id']}" if row.get("cell_id") else ""


def entrant_path(name: str) -> str:
    """Return the address of an entrant's figures, to which its name and its means link."""
    return f"entrants/{quote(name, safe='')}"


def entrant_cell(name: str) -> Cell:
    """Return a cell with the name of an entrant that links to the entrant's figures."""
    return Cell(name, opens=entrant_path(name))


#: Characters of a text that a page shows.
_MOST_CHARACTERS = 2000


def passage(text: str, marks: Sequence[tuple[int, int]] = (), shades: Sequence[int] = ()) -> Passage:
    """Return a text with its marks. A text too long for a page is cut, and ends with a note of its length."""
    if len(text) <= _MOST_CHARACTERS:
        return Passage(text, marks, shades)
    note = f" [...: {_MOST_CHARACTERS:,} of {len(text):,} characters]"
    inside = [(start, min(end, _MOST_CHARACTERS)) for start, end in marks if start < _MOST_CHARACTERS]
    return Passage(text[:_MOST_CHARACTERS] + note, inside, shades[: len(inside)])


def text_cell(text: Row | None, text_id: str) -> Cell:
    """Return a cell with a text that a run kept (a row of `TEXTS`), or with the text's id if it was not kept."""
    if text is None:
        return Cell(text_id)
    marks = [[(span["start"], span["end"]) for span in part["spans"] or ()] for part in text["texts"]]
    return Cell(passages=[passage(part["text"], of) for part, of in zip(text["texts"], marks, strict=True)])


def spans(sentence: str, names: Iterable[str]) -> list[Span]:
    """Return a sentence in pieces, with every name in a piece of its own."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    if not longest_first:
        return [Span(sentence)]
    pieces = re.split(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?!\w)", sentence)
    return [Span(piece, number % 2 == 1) for number, piece in enumerate(pieces) if piece]


def plain_page(title: str, subject: str, rows: Sequence[Row], board: BoardSpec, notes: Iterable[str] = ()) -> Page:
    """Return the page of any run: the entrants by mean rank on the primary metric, nulls and notes.

    Args:
        rows: Result rows, including the rows of mean ranks.
        notes: Notes of a run about its plan.
    """
    rank_rows = {row[board.entrant]: row for row in rows if is_rank(row, board.primary)}
    ranks = {name: row["value"] for name, row in rank_rows.items()}
    names = (row[board.entrant] for row in rows if row[board.entrant] and row["metric"] in board.shown)
    entrants = list(dict.fromkeys(names))
    counts = [rank_rows[name].get("n") or 0 if name in ranks else 0 for name in entrants]
    order = best_first(np.array([ranks.get(name) for name in entrants], float), np.array(counts))
    ordered = [entrants[place] for place in order]
    lines = [
        Line.of(
            entrant_cell(name), number(ranks.get(name)), *(_mean(rows, board, name, metric) for metric in board.shown)
        )
        for name in ordered
    ]
    note = (
        f"Mean rank over each {board.unit} on {board.primary} (1 is best), and the mean of each metric. A word in "
        "place of a number is why there is none."
    )
    answer = Answer(spans(_answer(lines, rows, board), [lines[0].cells[0].text] if lines else ()))
    nulls = (Problem(line) for line in null_lines(rows, board, board.ranked))
    return Page(
        title,
        subject,
        answer,
        Table.of([board.entrant, "mean rank", *board.shown], lines, note=note),
        [*nulls, *(Problem(line, "made") for line in notes)],
    )


#: Reasons that differ in their numbers alone are one.
_NUMBER = re.compile(r"\d[\d.,]*(e[+-]\d+)?")


def null_lines(rows: Iterable[Row], board: BoardSpec, metrics: Collection[str]) -> Iterator[str]:
    """Yield one line for each reason why figures are null, with the metrics, the entrants and the blocks.

    Args:
        metrics: Metrics whose nulls are listed.
    """
    cells = [row for row in rows if row["metric"] in metrics and row[board.entrant] and not board.is_apart(row)]
    blocks = {row[board.block] for row in cells}
    nulls: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in cells:
        if row["status"] != Status.OK:
            nulls[row["status"], _NUMBER.sub("#", row["reason"] or "")].append(row)
    for null_rows in nulls.values():
        null_metrics, entrants, where = (
            list(dict.fromkeys(row[column] for row in null_rows)) for column in ("metric", board.entrant, board.block)
        )
        places = "" if set(where) == blocks else f" on {listed(where)}"
        verb = "is" if len(null_rows) == 1 else "are"
        first = null_rows[0]
        yield (
            f"{', '.join(null_metrics)} of {listed(entrants)}{places} {verb} null, {first['status']}: {first['reason']}"
        )


def is_rank(row: Row, metric: str) -> bool:
    """Return whether a row is the mean rank of an entrant on a metric, over the board of all."""
    return row["metric"] == "rank.mean" and json.loads(row["params"]) == {"of": metric, "board": "all"}


def _mean(rows: Sequence[Row], board: BoardSpec, entrant: str, metric: str) -> Cell:
    """Return the mean over blocks, or the first reason why there is none."""
    entrant_rows = [row for row in rows if row["metric"] == metric and row[board.entrant] == entrant]
    values = [row["value"] for row in entrant_rows if row["value"] is not None]
    if not entrant_rows:
        return Cell()
    opens = entrant_path(entrant) if len(entrant_rows) > 1 else figure_path(entrant_rows[0])
    if values:
        return replace(number(fmean(values)), opens=opens)
    return Cell(str(entrant_rows[0]["status"]), note=entrant_rows[0].get("reason") or "", opens=opens)


def _answer(lines: Sequence[Line], rows: Sequence[Row], board: BoardSpec) -> str:
    blocks = {row[board.block] for row in rows if row["metric"] == board.primary and row["value"] is not None}
    if not lines or not blocks:
        return f"No {board.entrant} has a value of {board.primary}."
    over = f"{len(blocks)} {board.unit}{'s' if len(blocks) > 1 else ''}"
    return f"{lines[0].cells[0].text} comes first of {len(lines)} on {board.primary}, over {over}."
