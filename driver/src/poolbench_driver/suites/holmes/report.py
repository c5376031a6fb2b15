"""The page of a run: which entrant carries most, of which type of phenomenon, and how sure; and its pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from poolbench.contracts import Row
from poolbench_driver.contract.page import (
    Answer,
    Block,
    Cell,
    Column,
    Heads,
    Line,
    Page,
    Part,
    Passage,
    Picture,
    Problem,
    Table,
)
from poolbench_driver.contract.vega import COLOURS, GREY
from poolbench_driver.pages.drawing import chart, level, looks_of, name_axis, number_axis, picture, points, texts
from poolbench_driver.pages.plain import entrant_cell, figure, number, spans
from poolbench_driver.suites.holmes.figures import figures
from poolbench_driver.suites.holmes.view import Entrant, HolmesView


def by_type(view: HolmesView) -> Picture | None:
    """Return the winning rates of the first entrants by type of phenomenon."""
    entrants = [entrant for entrant in view.entrants[: len(COLOURS)] if entrant.overall["value"] is not None]
    if len(entrants) < 2:
        return None
    rows = [
        {
            "series": entrant.name, "y": kind, "x": rate.value, "left": rate.ci_low, "right": rate.ci_high,
            "says": f"{entrant.name}, {kind}: {rate.text} %",
        }
        for entrant in entrants
        for kind in view.types
        if (rate := entrant.rate(kind)).value is not None
    ]  # fmt: skip
    looks = looks_of(entrant.name for entrant in entrants)
    drawn = chart(
        [level("x", 50), points(rows)], number_axis("winning rate, %"), name_axis(view.types), 270, looks, beside=True
    )
    caption = "lines: 95 % intervals from a bootstrap over phenomena; 50 % is the mean of all entrants"
    return picture("Winning rates by type of phenomenon", drawn, captions=[caption])


def by_layer(view: HolmesView) -> Picture | None:
    """Plot the strategy that wins most for each type of phenomenon and layer, or return None for a single strategy."""
    carried = view.carried()
    if not carried:
        return None
    rows = [
        {"x": layer, "y": kind, "series": best[0], "text": f"{100 * rate:.0f} %",
         "says": f"{kind}, layer {layer}: {', '.join(best)} {100 * rate:.0f} %"}
        for kind, winners in carried.items()
        for layer, (best, rate) in winners.items()
    ]  # fmt: skip
    ordered = [name for name, _ in Counter(row["series"] for row in rows).most_common()]
    looks = {**dict.fromkeys(ordered, (GREY, "circle")), **looks_of(ordered[: len(COLOURS)])}
    drawn = chart(
        [points(rows, 80), texts(rows, dx=9)],
        name_axis(view.layers, "layer"),
        name_axis(carried),
        60 + 36 * len(carried),
        looks,
    )
    return picture("Best strategy by type of phenomenon and layer", drawn)


#: Entrants whose scores of each set are shown.
_SHOWN = 6
_METHOD = (
    "A linear probe on the vectors of each entrant (model, pooling, layer) predicts the labels of each probing set. "
    "The winning rate is the share of comparisons with other entrants that it wins, over all sets."
)


def page_of_view(view: HolmesView, page: Page) -> Page:
    """Return the page of one or several runs."""
    names = [entrant.name for entrant in view.entrants]
    return replace(
        page,
        answer=Answer(spans(view.answer(), names), [*filter(None, [view.certainty()]), _METHOD]),
        board=_board(view),
        problems=[*(Problem(line, "sets") for line in view.problems), *page.problems],
        picture=by_type(view),
        parts=[*_pooling(view), *_opened(view.examples), _sets(view), *figures(view), *_published(view.published)],
    )


def _board(view: HolmesView) -> Table:
    models = {entrant.model for entrant in view.pooled}
    heads: list[str | Column] = [
        "entrant", Column("winning rate %", has_intervals=True), *view.types, "score", "selectivity", "compression",
        "floor", "collapsed", *(["leader better : worse"] if view.comparisons else []),
    ]  # fmt: skip
    heads += [Column("architecture", is_text=True), "parameters"] if len(models) > 1 else []
    lines = [
        Line.of(
            entrant_cell(entrant.name),
            entrant.rate(),
            *map(entrant.rate, view.types),
            entrant.score(),
            *map(entrant.mean, ("probe.selectivity", "probe.compression", "probe.compression_floor")),
            _collapsed(entrant),
            *([view.tested(entrant)] if view.comparisons else []),
            *((entrant.architecture or "", number(entrant.num_parameters, ",d")) if len(models) > 1 else ()),
        )
        for entrant in view.entrants
    ]
    note = (
        "Winning rate in percent over all sets, with 95 % interval from a bootstrap over phenomena, then by type of "
        "phenomenon. Score is the mean macro-F1 (or correlation) over sets, with its standard deviation over seeds if "
        "there are several; selectivity is over a control task; compression is uniform over online code length, and "
        "floor is what the class frequencies alone give. Collapsed: sets where the probe predicts one label for all."
    )
    if view.comparisons:
        note += (
            " Leader better : worse counts the sets in which the first entrant has significantly more, and fewer, test "
            "instances right (McNemar's exact test, Holm over sets; comparisons.parquet)."
        )
    return Table.of(heads, lines, note=note)


def _collapsed(entrant: Entrant) -> Cell:
    return number(entrant.num_collapsed, ".0f")


def _pooling(view: HolmesView) -> Iterator[Part]:
    """Yield which pooling carries what, where several were read."""
    if not view.carried():
        return
    drawn = by_layer(view)
    blocks: list[Block] = [drawn] if drawn else []
    note = (
        "The strategy that wins most at each layer, by type of phenomenon, and its winning rate in percent over all "
        "entrants. Strategies that win as much stand together; the picture shows the first of them."
    )
    yield Part("pooling", "Which pooling carries what", [*blocks, carried_table(view)], "Pooling", note)


def carried_table(view: HolmesView) -> Table:
    """Return the strategies that win most, by type of phenomenon and layer."""
    lines = [
        Line.of(
            kind,
            *(Cell(f"{', '.join(best[at][0])} ({100 * best[at][1]:.0f})") if at in best else "" for at in view.layers),
        )
        for kind, best in view.carried().items()
    ]
    return Table.of(["type", *(Column(layer, is_text=True) for layer in view.layers)], lines)


def _opened(examples: Sequence[Row]) -> Iterator[Part]:
    """Yield the instances of the opened set."""
    heads: Heads = ["", *(Column(head, is_text=True) for head in ("label", "predicted", "text"))]
    lines = [
        Line.of(
            "right" if row["right"] else "wrong",
            row["truth"],
            row["predicted"],
            Cell(passages=[_passage(text) for text in row["texts"]]),
        )
        for row in examples
    ]
    if lines:
        note = (
            f"Test instances as {examples[0]['entrant']} reads them. Of the sets with classes, this one orders the "
            "entrants most like all sets together do. Where a span is read, it is marked."
        )
        heading = f"One set opened: {examples[0]['set']}"
        yield Part("opened", heading, [Table.of(heads, lines)], "One set", note)


def _passage(text: Row) -> Passage:
    return Passage(text["text"], [(span["start"], span["end"]) for span in text["spans"] or ()])


def _sets(view: HolmesView) -> Part:
    entrants = view.entrants[:_SHOWN]
    kinds = [Column(head, is_text=True) for head in ("type", "phenomenon", "input")]
    lines = [
        Line.of(
            row["set"], row["type"], row["phenomenon"], row["input"], number(row["num_instances"], "d"),
            number(row.get("discriminability"), ".2f"),
            *(_score(entrant.scores.get(row["set"])) for entrant in entrants),
        )
        for row in view.sets
    ]  # fmt: skip
    note = (
        "The score of each entrant on each probing set; in brackets where a probe collapsed. Discriminability is "
        "Kendall's tau of the set's order of the entrants with the overall one. Planted sets are written by a grammar: "
        "diagnostics, never ranked together with real text."
    )
    heads: Heads = ["set", *kinds, "instances", "discriminability", *(entrant.name for entrant in entrants)]
    table = Table.of(heads, lines)
    return Part("sets", "Sets", [table], "Sets", note)


def _score(row: Row | None) -> Cell:
    """Return a score, in brackets where its probe collapsed."""
    cell = figure(row)
    if row is None or row["value"] is None or not row["reason"]:
        return cell
    return Cell(f"({cell.text})", cell.value, note=row["reason"], opens=cell.opens)


def _published(entrants: Sequence[Entrant]) -> Iterator[Part]:
    lines = [
        Line.of(
            entrant.name, entrant.score(), entrant.mean("probe.selectivity"), _collapsed(entrant),
            entrant.rate("row"), entrant.rate("column"),
        )
        for entrant in entrants
    ]  # fmt: skip
    note = (
        "Probes trained as the reference trains them, over five seeds (published.parquet). They are there to be "
        "compared with published tables, and never ranked with the corrected ones. The winning rate is by rank, scaled "
        "between the lowest and the highest of each set, or of each entrant."
    )
    if lines:
        table = Table.of(["entrant", "score", "selectivity", "collapsed", "winning rate, by set", "by entrant"], lines)
        yield Part("published", "By the published definition, never ranked with the board", [table], "Published", note)
