"""Make the page of a run: what its suite says, then nulls, failures and provenance."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from poolbench.statuses import Status
from poolbench_corpora.io import write_at_once
from poolbench_driver.contract.page import Block, Cell, Column, Facts, Line, Page, Part, Prose, Table
from poolbench_driver.evidence import opened_by
from poolbench_driver.pages.boards.power import neighbours, sentence
from poolbench_driver.pages.html import Surroundings, html_of
from poolbench_driver.pages.plain import plain_page
from poolbench_driver.pages.text import json_of
from poolbench_driver.records import NOTES, Run
from poolbench_driver.results import results_digest


def write_report(run: Run) -> Path:
    """Write the report page of a run, and return its path. Raise NotFoundError if the run has no results yet."""
    return write_page(run, page_of(run))


def page_of(run: Run) -> Page:
    """Make the report page of a run: the page of its suite, and the parts that every run has.

    These parts are nulls, failures and provenance. The answer also gets one sentence on whether the data could detect
    a difference between the first two entrants of the board.
    """
    suite, rows, notes = run.suite, run.tables["results"].to_pylist(), [row["note"] for row in run.rows(NOTES)]
    subject = f"{rows[0]['model']}, budget {rows[0]['budget']}"
    page = suite.load().report(run, plain_page(suite.title or suite.id, subject, rows, suite.board, notes))
    pairs = neighbours(suite, [run], items=False)
    answer = replace(page.answer, sentences=[*page.answer.sentences, *map(sentence, pairs[:1])])
    provenance = Part("made", "How it was made", [_facts_of(run)], "Provenance")
    return replace(page, answer=answer).with_parts(_nulls(run), provenance)


def write_page(run: Run, page: Page) -> Path:
    """Write `report/index.html` and `report/view.json` of a run. Return the path of `index.html`."""
    target = run.file("report") / "index.html"
    target.parent.mkdir(exist_ok=True)
    opened = opened_by(run, page)

    def linked(cell: Cell) -> Cell:
        return cell if cell.opens in opened else replace(cell, opens="")

    fragments = {path: [part.with_cells(linked) for part in parts] for path, parts in opened.items()}
    config_yaml = run.file("config.resolved.yaml").read_text("utf-8")
    html = html_of(page.with_cells(linked), config_yaml, Surroundings(fragments=fragments))
    write_at_once(target.with_name("view.json"), json_of(page))
    write_at_once(target, html)
    return target


def _facts_of(run: Run) -> Facts:
    """Return where the figures of a run come from."""
    results = run.tables["results"]
    first = results.slice(0, 1).to_pylist()[0]
    return Facts(
        [
            ("run", run.id),
            ("model", f"{first['model']} at {first['model_revision']}"),
            ("dataset", f"{first['dataset']} at {first['dataset_revision']}"),
            ("protocol and budget", f"{first['protocol']}, {first['budget']}"),
            ("configuration", first["config_hash"]),
            ("code version", first["code_version"]),
            ("results digest", results_digest(results)),
            ("finished", first["created_at"]),
        ]
    )


def _nulls(run: Run) -> Part:
    """Return why figures are missing, and which tasks failed."""
    results, failures = run.tables["results"], run.tables["failures"].to_pylist()
    status, reason, kind = (Column(head, is_text=True) for head in ("status", "reason, for example", "kind"))
    counts: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for row in results.to_pylist():
        if row["status"] != Status.OK:
            key = (row["metric"].split(".")[0], row["status"])
            counts[key] += 1
            reasons.setdefault(key, row["reason"] or "")
    nulls = [Line.of(*key, str(number), reasons[key]) for key, number in counts.most_common()]
    failed = [Line.of(row["task_id"], row["kind"], row["reason"]) for row in failures]
    blocks: list[Block] = [
        Table.of(["metrics", status, "rows", reason], nulls) if nulls else Prose("No nulls."),
        Table.of(["failed task", kind, Column("reason", is_text=True)], failed) if failed else Prose("No task failed."),
    ]
    note = (
        f"{results.num_rows} rows in results.parquet. A figure that cannot be computed is null with a status, never a "
        "number."
    )
    return Part("nulls", "Nulls and failures", blocks, "Nulls", note)
