"""show: what a name stands for: a run, a cell of its results, a passage or text that it read, or a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import NotFoundError, PoolbenchError, UnknownNameError
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data, print_table

if TYPE_CHECKING:
    from poolbench_driver.contract.page import Part
    from poolbench_driver.records import Run

#: Characters that the beginning of a cell's id needs.
_LEAST = 6
#: What ids of tasks look like, and runs that are planned to find one.
_TASK, _PLANNED = r"[0-9a-f]{24}", 3
#: Tables of a run that have figures, and the column of their cells.
_CELLS = {"results": "cell_id", "published": "cell_id"}
#: Tables of a run that have scores of texts, and the column of their ids.
_TEXTS = {"passage_scores": "passage_id", "text_scores": "text_id", "evidence": "text_id"}


@dataclass(frozen=True)
class _Thing:
    """The object that a name stands for: its facts, and the tables or parts of a page behind it."""

    kind: str
    facts: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


def show(
    name: Annotated[str, typer.Argument(help="Of a run, a cell, a passage or text, or a task; a cell's may be cut.")],
    run: Annotated[str | None, typer.Option(help="Look in this run alone: its id, 'latest', or its folder.")] = None,
    output: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Find out what a name stands for and show it: a run, a cell of its results, a passage or text, or a task."""
    from poolbench_driver.records import Run, Runs, find_run

    local = {folder.id: folder for folder in Runs(output).all()}
    if name == "latest" or name in local or (Path(name) / "config.resolved.yaml").is_file():
        _print(_run(find_run(output, name)), as_json=as_json)
        return
    folders = list(local.values()) if run is None else [find_run(output, run)]
    finders: tuple[Callable[[Run, str], _Thing | None], ...] = (_cell, _text, _failed)
    places = [(find, folder) for find in finders for folder in folders]
    if re.fullmatch(_TASK, name):
        places += [(_planned, folder) for folder in folders[:_PLANNED]]
    for find, folder in places:
        if (thing := find(Run(folder.path, folder.id), name)) is not None:  # so that its tables are not kept
            _print(thing, as_json=as_json)
            return
    with suppress(NotFoundError):
        _print(_run(find_run(output, name)), as_json=as_json)
        return
    names = {candidate for folder in folders for candidate in (folder.id, *_ids(folder, _CELLS | _TEXTS))}
    raise UnknownNameError("run, cell, passage or task", name, names or {"latest"})


def _print(thing: _Thing, *, as_json: bool) -> None:
    """Print facts, then tables."""
    if as_json:
        from pydantic import TypeAdapter

        from poolbench_driver.contract.page import Part

        parts = TypeAdapter(list[Part]).dump_python(thing.parts, mode="json")
        content = {"kind": thing.kind, **thing.facts, "rows": thing.rows, "parts": parts}
        print_data(content, thing.rows or [thing.facts])
        return
    typer.echo(thing.kind)
    for fact, value in thing.facts.items():
        if value not in (None, [], {}):
            lines = [str(line) for line in value] if isinstance(value, list) else [str(value)]
            typer.echo(f"{fact + ':':<16} " + f"\n{'':<17}".join(lines))
    if thing.rows:
        print_table(thing.rows, list(thing.rows[0]))
    if thing.parts:
        from poolbench_driver.pages.text import parts_markdown

        typer.echo("\n\n".join(["", *parts_markdown(thing.parts)]))


def _run(folder: Run) -> _Thing:
    from poolbench_driver.pages.text import page_from

    config, state, view = folder.config, folder.read_state(), folder.file("report") / "view.json"
    answer = page_from(view.read_bytes()).answer if view.is_file() else None
    facts = {"run": folder.id, **{name: getattr(config, name) for name in ("suite", "model", "protocol", "seed")}}
    facts |= {"budget": config.budget.name, "concepts": list(config.concept_ids), "folder": str(folder.path)}
    facts |= {name: state.get(name) for name in ("state", "tasks", "tasks_done", "failures", "updated_at", "host")}
    facts |= {"results_digest": state.get("results_digest"), "report": str(view.with_name("index.html"))}
    words = [] if answer is None else [answer.text, *answer.sentences]
    return _Thing("run", facts | {"answer": words})


def _cell(folder: Run, name: str) -> _Thing | None:
    """Return the cell whose id is or begins with a name. Raise UnknownNameError if several do."""
    from poolbench_driver.evidence import evidence_of

    ids = [cell_id for cell_id in _ids(folder, _CELLS) if cell_id.startswith(name)] if len(name) >= _LEAST else []
    ids = [name] if name in ids else ids
    if len(set(ids)) > 1:
        raise UnknownNameError("cell, which several begin with", name, ids)
    if not ids:
        return None
    tables = (folder.rows(table, cell_id=ids[0]) for table in _CELLS)
    row = next(row for rows in tables for row in rows)
    facts = {"run": folder.id, **{column: value for column, value in row.items() if column != "run_id"}}
    return _Thing("cell", facts, parts=evidence_of(folder, ids[0]))


def _text(folder: Run, name: str) -> _Thing | None:
    """Return a passage or generated text with what the run keeps of it: its words and its scores."""
    by_table = {table: folder.rows(table, **{column: name}) for table, column in _TEXTS.items()}
    of_folder, scores = by_table.pop("evidence"), [row for rows in by_table.values() for row in rows]
    if not of_folder and not scores:
        return None
    block = of_folder[0]["block"] if of_folder else scores[0]["concept"]
    words = [text["text"] for row in (of_folder or _stored(folder, block, name))[:1] for text in row["texts"]]
    kind = "passage" if by_table["passage_scores"] else "text"
    return _Thing(kind, {"run": folder.id, kind: name, "of": block, "words": words}, scores)


def _stored(folder: Run, block: str, name: str) -> list[dict[str, Any]]:
    """Return the text from the object store; none where that cannot be read, or where it must stay there."""
    from poolbench_driver.contract.evidence import TextGroup
    from poolbench_driver.evidence import store_reader
    from poolbench_driver.job import prepare_again

    with suppress(PoolbenchError):
        job = prepare_again(folder)
        return store_reader(job.plan, job.session.artifacts)(TextGroup(block), [name])
    return []


def _failed(folder: Run, name: str) -> _Thing | None:
    for row in folder.rows("failures", task_id=name):
        facts = {"run": folder.id, "task": name, "of": row["kind"], "state": "failed"}
        return _Thing("task", facts | {fact: row[fact] for fact in ("status", "reason", "blocked")})
    return None


def _planned(folder: Run, name: str) -> _Thing | None:
    """Return a task of the run's plan; None without it, or where no cluster can be asked."""
    from poolbench.steps import label_of
    from poolbench_driver.job import prepare_again

    try:
        job = prepare_again(folder)
    except PoolbenchError:
        return None
    if (task := job.plan.tasks.get(name)) is None:
        return None
    session = job.session
    missing = [key for key in task.outputs.values() if not session.artifacts.exists(key)]
    waits, works = name in session.queue.waiting(task.service), name in session.leases.held([name])
    state = "done" if not missing else "in work" if works else "waiting" if waits else "to do"
    facts: dict[str, Any] = {"run": folder.id, "task": name, "of": task.kind, "what": label_of(task.kind)}
    facts["state"] = state
    if len(missing) < len(task.outputs):
        laps = [session.artifacts.manifest(key).producer for key in task.outputs.values() if key not in missing]
        facts |= {"host": laps[0].get("host"), "wall_s": round(sum(lap.get("wall_s") or 0.0 for lap in laps), 3)}
        facts |= {"peak_bytes": max(lap.get("peak_bytes") or 0 for lap in laps)}
    keys = [(role, key, "in") for role, key in task.inputs.items()] + [(r, k, "out") for r, k in task.outputs.items()]
    return _Thing("task", facts, [{"role": role, "of task": side, "artifact": key} for role, key, side in keys])


def _ids(folder: Run, columns: Mapping[str, str]) -> list[str]:
    """Return the ids in columns of some tables of a run, as far as it has these."""
    ids = list[str]()
    for table, column in columns.items():
        with suppress(NotFoundError):
            ids += folder.read_table(table, columns=[column])[column].unique().to_pylist()
    return ids
