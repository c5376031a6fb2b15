"""Two runs side by side: what changed, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poolbench.contracts import Row
from poolbench_driver.comparison import as_sentence, compare_runs, read_results
from poolbench_driver.comparison.pairing import ACROSS
from poolbench_driver.comparison.render import as_tables
from poolbench_driver.console.source import RunSource
from poolbench_driver.contract.evidence import EVIDENCE
from poolbench_driver.contract.page import (
    Answer,
    Cell,
    Column,
    Form,
    FormField,
    Line,
    Page,
    Part,
    Passage,
    SideBySide,
    Span,
    Table,
)
from poolbench_driver.pages.plain import passage
from poolbench_driver.records import RunFolder

_NUMBERS = ("first", "second", "difference", "change", "p", "p (Holm)", "cells", "concepts", "value", "num_strategies")


def comparison_page(source: RunSource, query: Mapping[str, str]) -> Page:
    """Return the comparison that a query asks for: `first`, `second` and `across`; without them, the choice alone.

    Raises:
        ConfigError: The runs have no cell in common.
    """
    runs = [folder.id for folder in source.finished()[0]]
    ids = [query.get("first") or next(iter(runs[1:]), ""), query.get("second") or next(iter(runs), "")]
    across = query.get("across", "")
    form = Form(
        [
            *(
                FormField(name, f"{name} run", run, [(one, one) for one in runs])
                for name, run in zip(("first", "second"), ids, strict=True)
            ),
            FormField(
                "across", "pair cells although these differ", across, [("", "nothing"), *((one, one) for one in ACROSS)]
            ),
        ],
        button="Compare",
    )
    if "first" not in query or len(runs) < 2:
        return Page("Compare", "two runs", Answer([Span("Choose two runs.")]), Table.of([], []), form=form)
    folders = [source.folder(name) for name in ids]
    first, second = (read_results(folder) for folder in folders)
    changes = compare_runs(first, second, across=[across] if across else ())
    tables = as_tables(changes, everything=True)
    sentence = as_sentence(changes, *ids)
    parts = [
        Part(f"part{place}", title.capitalize(), [_table(columns, rows)])
        for place, (title, columns, rows) in enumerate(tables)
    ]
    certain = [row for title, _, rows in tables[:1] for row in rows if row.get("")]
    headline = f"{len(certain)} differences are sure" if len(certain) != 1 else "One difference is sure"
    notes = ["Second minus first; intervals over concepts, p-values corrected for the strategies of a metric (Holm)."]
    board = parts[0].blocks[0] if parts else Table.of([], [])
    assert isinstance(board, Table)
    answer = Answer([Span(f"{headline}.")], [f"{sentence[:1].upper()}{sentence[1:]}.", *notes])
    parts = [*parts[1:], _changed_texts(folders)]
    return Page("Compare", " and ".join(ids), answer, board, parts=parts, form=form)


def _table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    heads = [
        Column(name or "verdict", is_text=name not in _NUMBERS, has_intervals=name in ("difference", "change"))
        for name in columns
    ]
    return Table(heads, [Line([_cell(row, name) for name in columns]) for row in rows])


def _cell(row: Row, name: str) -> Cell:
    text, ends = str(row.get(name, "")), str(row.get("95 % interval", ""))
    if name not in ("difference", "change") or not text:
        return Cell(text)
    low, _, high = ends.partition(" to ")
    return Cell(text, float(text), float(low), float(high), ends) if high else Cell(text, float(text))


#: Pairs of texts that a page shows.
_MOST_TEXTS = 20


def _changed_texts(folders: Sequence[RunFolder]) -> Part:
    """Return the texts of the same opening, entrant and seed that two runs kept and that differ."""
    first, second = ({_identity(row): row for row in folder.rows(EVIDENCE)} for folder in folders)
    common = [key for key in first if key in second]
    changed = [key for key in common if _texts_of(first[key]) != _texts_of(second[key])]
    blocks = [
        SideBySide([_side(folder, rows[key]) for folder, rows in zip(folders, (first, second), strict=True)])
        for key in changed[:_MOST_TEXTS]
    ]
    note = f"{len(changed)} of {len(common)} texts that both runs kept differ."
    if not common:
        note = "No text of the same opening, entrant and seed was kept: `poolbench-driver run --evidence N` keeps some."
    return Part("texts", "Texts that changed", blocks, note=note)


def _side(folder: RunFolder, row: Row) -> tuple[str, Passage]:
    return f"{folder.id}: {', '.join(filter(None, _identity(row)))}", passage("\n".join(_texts_of(row)))


def _identity(row: Row) -> tuple[str, str, str]:
    return row["block"], row["origin"], row["text_id"]


def _texts_of(row: Row) -> list[str]:
    return [part["text"] for part in row["texts"]]
