"""All runs: what each is, and how far it is."""

from __future__ import annotations

from typing import Any

from poolbench.errors import PoolbenchError
from poolbench.statuses import RunState
from poolbench_driver.contract.page import Answer, Cell, Column, Form, FormField, Line, Page, Part, Span, Table
from poolbench_driver.records import UNFINISHED, Run, Runs


def runs_page(shown: Runs) -> Page:
    """Return the page that lists all runs, newest first.

    A run that has ended links to its report, and an unfinished run to its progress.
    """
    runs = shown.all()
    states = [run.read_state() for run in runs]
    finished = [run.id for run, state in zip(runs, states, strict=True) if state.get("state") == RunState.DONE]
    headline = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    sentences = [f"{len(finished)} finished."] if runs else ["`poolbench-driver run` makes one."]
    text = (Column(head, is_text=True) for head in ("state", "settings", "updated", "machine"))
    state, settings, updated, machine = text
    columns = [
        Column("run"),
        state,
        Column("tasks done"),
        Column("tasks"),
        Column("failures"),
        settings,
        updated,
        machine,
    ]
    lines = [_line(run, fields, shown) for run, fields in zip(runs, states, strict=True)]
    parts = []
    if len(finished) > 1:
        choices = [(name, name) for name in finished]
        fields = [
            FormField("first", "first run", finished[1], choices),
            FormField("second", "second run", finished[0], choices),
        ]
        parts = [
            Part("two", "Two runs side by side", [Form(fields, action="compare", button="Compare")], "Compare two")
        ]
    return Page(
        "Runs",
        "of the cluster" if shown.records else shown.output.name,
        Answer([Span(headline)], sentences),
        Table.of(columns, lines),
        parts=parts,
    )


def _line(run: Run, state: dict[str, Any], runs: Runs) -> Line:
    numbers = [str(state.get(name, "")) for name in ("tasks_done", "tasks", "failures")]
    settings = _settings(run, runs)
    texts = [settings, str(state.get("updated_at", "")).replace("T", " ")[:16], str(state.get("host", ""))]
    page = f"runs/{run.id}/{'progress' if state.get('state') in UNFINISHED else ''}"
    return Line.of(Cell(run.id, opens=page), str(state.get("state", "")), *numbers, *texts)


def _settings(run: Run, runs: Runs) -> str:
    """Return the suite and the model of a run, or the error message if its settings cannot be read."""
    if not run.is_here:
        return runs.records.config(run.id).model if runs.records else ""
    try:
        config = run.config
    except PoolbenchError as error:
        return str(error)
    return f"{config.suite}, {config.model}"
