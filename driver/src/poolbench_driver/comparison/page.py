"""The changes between two runs as a page."""

from collections.abc import Sequence

from poolbench.contracts import Row
from poolbench_driver.comparison.changes import RunChanges
from poolbench_driver.comparison.render import DECIMALS, as_sentence, as_tables
from poolbench_driver.contract.evidence import EVIDENCE
from poolbench_driver.contract.page import Answer, Cell, Column, Line, Page, Part, Passage, SideBySide, Span, Table
from poolbench_driver.pages.plain import passage
from poolbench_driver.records import Run

_NUMBERS = ("first", "second", "difference", "change", "p", "p (Holm)", "cells", "concepts", "value", "num_strategies")


def changes_page(runs: Sequence[Run], changes: RunChanges, *, everything: bool = True) -> Page:
    """Return the page of changes from the first run to the second: the tables of `as_tables`, and changed texts."""
    tables = as_tables(changes, everything=everything)
    sentence = as_sentence(changes, *(run.id for run in runs))
    parts = [
        Part(f"part{place}", title.capitalize(), [_table(columns, rows)])
        for place, (title, columns, rows) in enumerate(tables)
    ]
    certain = [row for title, _, rows in tables[:1] for row in rows if row.get("")]
    headline = f"{len(certain)} differences are sure" if len(certain) != 1 else "One difference is sure"
    notes = ["Second minus first; intervals over concepts, p-values corrected for the strategies of a metric (Holm)."]
    board = parts[0].blocks[0] if parts else Table.of([], [])
    assert isinstance(board, Table)
    answer = Answer([Span(f"{headline}.")], [f"{sentence}.", *notes])
    subject = " and ".join(run.id for run in runs)
    return Page("Compare", subject, answer, board, parts=[*parts[1:], _changed_texts(runs)])


def _table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    heads = [
        Column(name or "verdict", is_text=name not in _NUMBERS, has_intervals=name in ("difference", "change"))
        for name in columns
    ]
    return Table(heads, [Line([_cell(row, name) for name in columns]) for row in rows])


def _cell(row: Row, name: str) -> Cell:
    text = str(row.get(name, ""))
    if name not in DECIMALS or not text:
        return Cell(text)
    value, low, high = (
        None if number is None else round(number, DECIMALS[name]) + 0.0  # without a negative zero
        for number in (row["number"], row["ci_low"], row["ci_high"])
    )
    return Cell(text, value, low, high)  # the interval as text has a column of its own


#: Pairs of texts that a page shows.
_MOST_TEXTS = 20


def _changed_texts(runs: Sequence[Run]) -> Part:
    """Return the texts that differ between two runs. Texts are compared if opening, entrant and seed are equal."""
    first, second = ({_identity(row): row for row in run.rows(EVIDENCE)} for run in runs)
    common = [key for key in first if key in second]
    changed = [key for key in common if _texts_of(first[key]) != _texts_of(second[key])]
    blocks = [
        SideBySide([_side(run, rows[key]) for run, rows in zip(runs, (first, second), strict=True)])
        for key in changed[:_MOST_TEXTS]
    ]
    note = f"{len(changed)} of {len(common)} texts that both runs kept differ."
    if not common:
        note = "No text of the same opening, entrant and seed was kept: `poolbench-driver run --evidence N` keeps some."
    return Part("texts", "Texts that changed", blocks, note=note)


def _side(run: Run, row: Row) -> tuple[str, Passage]:
    return f"{run.id}: {', '.join(filter(None, _identity(row)))}", passage("\n".join(_texts_of(row)))


def _identity(row: Row) -> tuple[str, str, str]:
    return row["block"], row["origin"], row["text_id"]


def _texts_of(row: Row) -> list[str]:
    return [part["text"] for part in row["texts"]]
