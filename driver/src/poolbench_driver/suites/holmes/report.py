"""The page of a run: which entrant carries most, of which type of phenomenon, and how sure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poolbench.contracts import Row
from poolbench_driver.contract.suite import FinishedRun, Report, Section
from poolbench_driver.pages.markdown import items, table
from poolbench_driver.pages.markup import marked
from poolbench_driver.suites.holmes.pictures import by_layer, by_type
from poolbench_driver.suites.holmes.view import View, view_of, view_over

if TYPE_CHECKING:
    import pyarrow as pa

#: Parts of the page: template, anchor and label.
_PARTS = (
    ("first", "", ""),
    ("board", "leaderboard", "Board"),
    ("pooling", "pooling", "Pooling"),
    ("opened", "opened", "One set"),
    ("sets", "sets", "Sets"),
    ("published", "published", "Published"),
)


def report(tables: Mapping[str, pa.Table]) -> Report:
    """Return the page of a run from its tables. Raise NotFoundError if the run has no results yet."""
    view = view_of(tables)
    visibility = {"pooling": bool(view.carried()), "opened": bool(view.examples), "published": bool(view.published)}
    values: dict[str, Any] = {
        "view": view, "by_type": by_type(view), "by_layer": by_layer(view), "opened": list(_opened(view.examples))
    }  # fmt: skip
    sections = [
        Section(__name__.rpartition(".")[0], f"{name}.html.j2", values, anchor, label)
        for name, anchor, label in _PARTS
        if visibility.get(name, True)
    ]
    text = f"{_said(view)}\n\n{_markdown(view)}"
    return Report(f"Holmes: {view.model}", sections, text, "\n\n".join([text, *_pooling(view)]))


def _said(view: View) -> str:
    return " ".join(filter(None, [view.answer(), view.certainty()]))


def joined(runs: Sequence[FinishedRun]) -> str:
    """Return the board of several runs as Markdown. Raise ConfigError if their figures are not comparable."""
    view = view_over(runs)
    return f"{_said(view)}\n\n{_markdown(view)}"


def _opened(examples: Sequence[Row]) -> Iterator[Row]:
    """Yield the instances of the opened set, with their texts as HTML."""
    for row in examples:
        yield {**row, "texts": [marked(passage["text"], passage["spans"]) for passage in row["texts"]]}


def _pooling(view: View) -> Iterator[str]:
    """Yield the table of which pooling carries what."""
    if view.carried():
        yield "Which pooling carries what: the strategy that wins most at each layer, with its winning rate in %."
        yield carried_table(view)


def carried_table(view: View) -> str:
    """Return the strategies that win most, by type of phenomenon and layer."""
    lines = [
        [kind, *(f"{', '.join(best[at][0])} ({100 * best[at][1]:.0f})" if at in best else "" for at in view.layers)]
        for kind, best in view.carried().items()
    ]
    return table(["type", *view.layers], lines)


def _markdown(view: View) -> str:
    head = ["entrant", "winning rate %", "95 % interval", *view.types, "score", "selectivity", "compression",
            "floor", "collapsed", "leader better : worse"]  # fmt: skip
    lines = []
    for entrant in view.entrants:
        names = ("probe.selectivity", "probe.compression", "probe.compression_floor")
        figures = [entrant.mean(name) for name in names]
        cells = [
            *map(entrant.rate, view.types),
            entrant.score(),
            *figures,
            str(entrant.num_collapsed),
            view.tested(entrant),
        ]
        lines.append([entrant.name, entrant.rate(), entrant.interval, *cells])
    return "\n\n".join(filter(None, [table(head, lines), items(view.problems)]))
