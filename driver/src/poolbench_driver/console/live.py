"""What happens now: services, queues, dead letters, and how far each run is that a driver works on.

Nothing is read unless somebody asks, and several who ask at once are answered from one reading.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from poolbench.errors import NotFoundError, shown
from poolbench.statuses import ServiceState
from poolbench_driver.cluster.dead_letters import (
    DeadLetters,
    LetterFilter,
    ListedLetters,
    listed_letters,
    open_letters,
    when,
)
from poolbench_driver.cluster.services import Services
from poolbench_driver.contract.page import (
    Answer,
    Block,
    Cell,
    Column,
    Details,
    Facts,
    Heads,
    Line,
    Page,
    Part,
    Problem,
    Prose,
    Span,
    Table,
)
from poolbench_driver.pages.plain import number
from poolbench_driver.records import UNFINISHED, Runs
from poolbench_driver.records.overview import overview

#: A reading is as new as this for all who ask.
_KEPT_S = 1.0
#: Dead letters that are listed, the newest first, and runs whose progress is shown.
_MOST_LETTERS, _MOST_RUNS = 50, 5
_LETTER_ID = re.compile(r"[0-9a-f]{32}")


class Live:
    """The facts of the live view, and its actions on dead letters.

    Args:
        runs: The runs.
        services: The services of the cluster. None without a cluster: then only runs of this machine are shown.
    """

    def __init__(self, runs: Runs, services: Services | None) -> None:
        self._runs, self._services = runs, services
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {}
        self._read_s = -float("inf")

    def state(self) -> dict[str, Any]:
        """Return services, queues, runs, the progress of unfinished runs, and the newest dead letters.

        A reading that is at most `_KEPT_S` seconds old is returned again.
        """
        with self._lock:
            if time.monotonic() - self._read_s > _KEPT_S:
                self._state = self._read()
                self._read_s = time.monotonic()
            return self._state

    def _read(self) -> dict[str, Any]:
        if self._services is None:
            runs = [{"run": run.id, **run.read_state()} for run in self._runs.all()]
            state: dict[str, Any] = {"services": [], "runs": runs, "damaged": ""}
        else:
            state = overview(self._services, self._runs.output)
        working = [run["run"] for run in state["runs"] if run.get("state") in UNFINISHED][:_MOST_RUNS]
        letters = self._letters.rows(LetterFilter()) if self._letters and "unknown" not in state else []
        newest = sorted(letters, key=lambda row: row["at"] or "", reverse=True)[:_MOST_LETTERS]
        return {**state, "dead_letters": newest, "in_work": [self.progress(run) for run in working]}

    def progress(self, run: str) -> dict[str, Any]:
        """Return the state and the progress of a run. Raise NotFoundError if no run has this id."""
        records, listed = self._runs.records, self._runs.find(run)
        progress = records.progress(listed.id) if records else None
        facts = {"run": listed.id, **listed.read_state()}
        return {**facts, "progress": progress.model_dump(mode="json") if progress else None}

    @cached_property
    def _letters(self) -> DeadLetters | ListedLetters | None:
        return listed_letters(self._services) if self._services else None

    def letter(self, letter: str) -> dict[str, Any]:
        """Return a dead letter with its cause and its input. Raise NotFoundError if no dead letter has this id."""
        if self._letters is None or not _LETTER_ID.fullmatch(letter):
            raise NotFoundError(f"no dead letter has the id {shown(letter)}")
        return self._letters.details(letter)

    def retry(self, letter: str) -> dict[str, Any]:
        """Send the task of a dead letter again. Return the outcome.

        Raises:
            NotFoundError: No letter has this id.
            ConfigError: The queue or the store of the cluster is not known here.
        """
        self.letter(letter)
        letters = open_letters()
        return _reported(letters.retry(letters.find([letter])))

    def drop(self, letter: str) -> dict[str, Any]:
        """Remove a dead letter without sending its task. Return the outcome. Errors are the errors of `retry`."""
        self.letter(letter)
        letters = open_letters()
        return _reported(letters.drop(letters.find([letter])))


def _reported(reports: Any) -> dict[str, Any]:
    return {
        "reports": [
            {"id": report.letter.letter_id, "task_id": report.letter.task_id, "verdict": report.verdict.value,
             "why": report.why}
            for report in reports
        ]
    }  # fmt: skip


def live_page(state: dict[str, Any], subject: str) -> Page:
    """Return a page with services, unfinished runs and dead letters. `state` is the return value of `Live.state`."""
    in_work = state["in_work"]
    headline = "No run is in work." if not in_work else f"{len(in_work)} run{'s' * (len(in_work) > 1)} in work."
    notes = [f"Queues and runs are unknown: {state['unknown']}"] if "unknown" in state else []
    return Page(
        "Live",
        subject,
        Answer([Span(headline)], [*map(_sentence, in_work), *notes, *filter(None, [state["damaged"]])]),
        _services(state["services"]),
        problems=[*_problems(state)],
        parts=[*(_run_part(run, f"run-{place}") for place, run in enumerate(in_work)), *_letters_part(state)],
    )


def progress_page(run: dict[str, Any]) -> Page:
    """Return a page with the progress of a run. `run` is the return value of `Live.progress`."""
    answer = Answer([Span(f"{run['run']}: {run.get('state', 'unknown')}.")], [_sentence(run)])
    return Page("Progress", run["run"], answer, Table.of([], []), parts=[_run_part(run, "run")])


def letter_page(letter: dict[str, Any]) -> Page:
    """Return a page with a dead letter, its cause and its input. `letter` is the return value of `Live.letter`."""
    facts = [(name, "unknown" if letter[name] is None else str(letter[name])) for name in _LETTER_FACTS]
    task = letter.get("task") or {}
    facts += [(name, json.dumps(value)) for name, value in task.items() if name not in _LETTER_FACTS]
    facts += [(name, str(letter[name])) for name in ("text", "body") if letter.get(name)]
    blocks: list[Block] = [Prose(letter["reason"]), Facts(facts)]
    answer = Answer([Span(letter["reason"])])
    return Page("Dead letter", letter["id"], answer, Table.of([], []), parts=[Part("letter", "Dead letter", blocks)])


_LETTER_FACTS = ("id", "service", "at", "task_id", "kind", "size")


def _sentence(run: dict[str, Any]) -> str:
    done = f"{run['run']}: {run.get('tasks_done', 0):,} of {run.get('tasks', 0):,} tasks done"
    failures = f", {run['failures']:,} failed" if run.get("failures") else ""
    left_s = (run["progress"] or {}).get("left_s")
    return f"{done}{failures}{'' if left_s is None else f'; about {_spell(left_s)} left at the rates so far'}."


def _problems(state: dict[str, Any]) -> Iterator[Problem]:
    for service in state["services"]:
        if service["health"] not in (ServiceState.OK, ServiceState.ASLEEP):
            yield Problem(f"{service['service']}: {service['health']}", "leaderboard")
    if num_letters := sum(service.get("dead_letters", 0) for service in state["services"]):
        yield Problem(f"Dead letters, which are delivered no more: {num_letters:,}", "dead-letters")


_SERVICES = {"waiting": "tasks that wait", "oldest_s": "oldest, s", "not_understood": "not understood",
             "dead_letters": "dead letters"}  # fmt: skip


def _services(services: Sequence[dict[str, Any]]) -> Table:
    lines = [
        Line.of(row["service"], row["health"], *(number(row.get(name), ",") for name in _SERVICES)) for row in services
    ]
    heads: Heads = ["service", Column("health", is_text=True), *_SERVICES.values()]
    return Table.of(heads if services else [], lines, title="Services and their queues")


def _run_part(run: dict[str, Any], anchor: str) -> Part:
    """Return the part of a page with the stages, first figures, failures, notes and tasks of a run."""
    progress = run["progress"]
    if progress is None:
        return Part(anchor, run["run"], [Prose("Its driver has published no progress.")], run["run"])
    blocks: list[Block] = [_stages(progress["stages"])]
    heads: Heads
    if progress["figures"]:
        lines = [
            Line.of(f["entrant"], str(f["layer"]), f["metric"], number(f["value"]), number(f["num_cells"], ","))
            for f in progress["figures"]
        ]
        heads = ["entrant", "layer", Column("figure", is_text=True), "mean so far", "of cells"]
        blocks.append(
            Table.of(heads, lines, title="First figures", note="The best of each figure first; without intervals yet.")
        )
    if progress["failures"]:
        lines = [Line.of(f["task"], f["label"], f["reason"]) for f in progress["failures"]]
        heads = ["task", Column("stage", is_text=True), Column("reason", is_text=True)]
        blocks.append(Table.of(heads, lines, title="Last failures"))
    if progress["notes"]:
        blocks.append(Table.of([Column("note", is_text=True)], map(Line.of, progress["notes"]), title="Last notes"))
    lines = [
        Line.of(sent["task"], sent["label"], _spell(progress["elapsed_s"] - sent["sent_s"]))
        for sent in progress["sent"]
    ]
    if lines:
        table = Table.of(["task", Column("stage", is_text=True), "for"], lines)
        blocks.append(Details(f"{progress['num_sent']} tasks wait or are in work", [table]))
    return Part(anchor, run["run"], blocks, run["run"], f"State {run.get('state')}, on {run.get('host', '?')}.")


def _stages(stages: Sequence[dict[str, Any]]) -> Table:
    lines = [
        Line.of(
            stage["label"],
            number(stage["done"], ","),
            number(stage["tasks"], ","),
            number(stage["failed"], ","),
            number(stage["per_min"], ",.3g"),
            "" if stage["left_s"] is None else _spell(stage["left_s"]) if stage["left_s"] else "done",
        )
        for stage in stages
    ]
    return Table.of(["stage", "done", "tasks", "failed", "per minute", "left"], lines, title="Stages")


def _letters_part(state: dict[str, Any]) -> Iterator[Part]:
    lines = [
        Line.of(
            Cell(row["id"][:12], opens=f"dead-letters/{row['id']}"), row["service"], when(row["at"]),
            row["task_id"], row["kind"], row["reason"],
        )
        for row in state["dead_letters"]
    ]  # fmt: skip
    if lines:
        heads: Heads = ["letter", *(Column(head, is_text=True) for head in ("service", "at", "task", "kind", "cause"))]
        note = f"The newest, {_MOST_LETTERS} at most; each opens its input."
        yield Part("dead-letters", "Dead letters", [Table.of(heads, lines)], "Dead letters", note)


def _spell(seconds: float) -> str:
    """Return a time in one unit or two."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"
