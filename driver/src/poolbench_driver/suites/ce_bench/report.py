"""The page of a run: which autoencoder separates best, what limits that, the board, and a subject opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poolbench.contracts import Row
from poolbench_driver.contract.suite import FinishedRun, Report, Section
from poolbench_driver.pages.drawing import bars
from poolbench_driver.pages.markdown import table
from poolbench_driver.pages.markup import marked
from poolbench_driver.suites.ce_bench.concepts import Reader, readers
from poolbench_driver.suites.ce_bench.entrant import Entrant
from poolbench_driver.suites.ce_bench.families import families_of
from poolbench_driver.suites.ce_bench.metrics import (
    CONTRASTIVE,
    DENSE,
    EXCESS,
    HELD_OUT,
    INDEPENDENT,
    L0,
    PAPER,
    PRIMARY,
    RECOVERED,
    UNEXPLAINED,
    WIDTH,
)
from poolbench_driver.suites.ce_bench.picture import picture
from poolbench_driver.suites.ce_bench.view import View, entrants_over, view_of

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the board before and after the score, with their heads.
_DESCRIPTIONS = {UNEXPLAINED: "unexplained", RECOVERED: "loss recovered", DENSE: "dense"}
_COLUMNS = {CONTRASTIVE: "contrastive", INDEPENDENT: "independent", EXCESS: "excess", HELD_OUT: "held out"}
_PUBLISHED = {
    CONTRASTIVE: "contrastive", INDEPENDENT: "independent", PRIMARY: "interpretability",
    "ce.interpretability.sum": "sum", PAPER: "sparsity-aware",
}  # fmt: skip
#: Parts of the page: template, anchor and label.
_PARTS = (
    ("first", "", ""),
    ("board", "leaderboard", "Board"),
    ("published", "published", "Published"),
    ("size", "size", "Size"),
    ("seeds", "seeds", "Seeds"),
    ("subject", "subject", "Subject"),
)
#: Lines of problems, strongest features of a subject, and features that the text names.
_PROBLEMS, _STRONGEST, _NAMED = 8, 5, 3


def report(tables: Mapping[str, pa.Table]) -> Report:
    """Return the page of a run from its tables. Raise NotFoundError if the run has no results yet."""
    view = view_of(tables)
    opened = view.opened()
    visibility = {"published": bool(view.published), "size": len(view.trained) > 1, "subject": opened is not None}
    visibility["seeds"] = bool(view.families.all)
    problems, drawn = view.problems(), bars([entrant.figures.get(PRIMARY, {}) for entrant in view.entrants])
    values: dict[str, Any] = {
        "view": view, "picture": picture(view), "published": _PUBLISHED, "metric": PRIMARY,
        "columns": _COLUMNS, "descriptions": _DESCRIPTIONS,
        "problems": problems[:_PROBLEMS], "num_more": max(0, len(problems) - _PROBLEMS), "bars": drawn,
        "opened": opened and _opened(opened), "subjects": list(_subjects(view)),
    }  # fmt: skip
    sections = [
        Section(__name__.rpartition(".")[0], f"{name}.html.j2", values, anchor, label)
        for name, anchor, label in _PARTS
        if visibility.get(name, True)
    ]
    ranking = readers(tables["results"].to_pylist())
    concepts = list(dict.fromkeys(name for reader in ranking for name in reader.values))
    if ranking:
        values = {"readers": ranking, "concepts": concepts}
        sections.append(Section(__name__.rpartition(".")[0], "concepts.html.j2", values, "concepts", "Concepts"))
    text = f"{view.answer()} {view.certainty()}\n\n{_board(view.entrants)}"
    return Report(
        f"CE-Bench: {view.model}", sections, text, "\n\n".join([text, *_details(view), *_readers(ranking, concepts)])
    )


def joined(runs: Sequence[FinishedRun]) -> str:
    """Return the board of several runs as Markdown. Raise ConfigError if the runs have different stories."""
    entrants = entrants_over(runs)
    return "\n\n".join(filter(None, [_board(entrants), families_of(entrants).markdown()]))


def _opened(row: Row) -> Row:
    """Return a subject with its stories as HTML."""
    stories = {side: marked(row[side], row[f"{side}_marks"]) for side in ("first", "second")}
    return {**row, **stories, "features": row["features"][:_STRONGEST]}


def _board(entrants: Sequence[Entrant]) -> str:
    descriptions = _DESCRIPTIONS.values()
    head = ["entrant", "layer", "d", "L0", *descriptions, "interpretability", "95 % interval", *_COLUMNS.values()]
    return table(
        head,
        [
            [
                entrant.name,
                str(entrant.layer),
                entrant.count(WIDTH),
                entrant.count(L0),
                *map(entrant.text, _DESCRIPTIONS),
                entrant.text(PRIMARY),
                entrant.interval(),
                *map(entrant.text, _COLUMNS),
            ]
            for entrant in entrants
        ],
    )


def _details(view: View) -> Iterator[str]:
    """Yield what the text has after the board."""
    if problems := view.problems():
        yield "\n".join(f"- {problem.text}" for problem in problems)
    if len(view.trained) > 1:
        lines = table(["score", "as -L0", "as log2 d"], view.by_size())
        yield f"Share of the pairs of autoencoders that a score orders as size alone does:\n\n{lines}"
    if seeds := view.families.markdown():
        yield seeds
    if subjects := list(_subjects(view)):
        head = ["subject", "contrastive", "held out", "strongest features"]
        yield f"Subjects, as {view.trained[0].name} sees them:\n\n{table(head, subjects)}"
    if view.published:
        lines = table(
            ["entrant", *_PUBLISHED.values()],
            [[entrant.name, *map(entrant.text, _PUBLISHED)] for entrant in view.published],
        )
        yield f"By the published definition, never ranked with the board:\n\n{lines}"


def _subjects(view: View) -> Iterator[list[str]]:
    """Yield subject, scores and strongest features, each with the side that has more of it."""
    for row in view.of_subjects():
        held = "" if row["held_out"] is None else f"{row['held_out']:.2f}"
        features = (
            f"{feature['feature']} ({'high' if feature['first'] > feature['second'] else 'low'})"
            for feature in row["features"][:_NAMED]
        )
        yield [row["subject"], f"{row['contrastive']:.3f}", held, ", ".join(features)]


def _readers(ranking: Sequence[Reader], concepts: Sequence[str]) -> Iterator[str]:
    """Yield the table of how well features and pooled directions carry concepts."""
    if ranking:
        lines = [
            [
                reader.name,
                str(reader.layer),
                "" if reader.mean is None else f"{reader.mean:.3f}",
                *map(reader.text, concepts),
            ]
            for reader in ranking
        ]
        yield "How well concepts and probing sets are read, by AUROC:"
        yield table(["reader", "layer", "mean", *concepts], lines)
