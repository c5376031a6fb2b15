"""What a run of preference shift says: which words moved, whether neutral fine-tunes do the same, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from poolbench.contracts import Row
from poolbench_driver.contract.evidence import Evidence, OpenedCell
from poolbench_driver.contract.page import (
    Answer,
    Column,
    Group,
    Heads,
    Line,
    Page,
    Part,
    Problem,
    Prose,
    Table,
)
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.pages.plain import entrant_cell, figure, number
from poolbench_driver.suites.humanoid.cosines import LISTS
from poolbench_driver.suites.humanoid.metrics import AWAY, PRIMARY, TOWARDS, VALENCE
from poolbench_driver.suites.humanoid.pictures import arrows, by_amount, single_words
from poolbench_driver.suites.humanoid.view import HumanoidView, Tune, towards_first, view_of

#: Readings of the words, that of the board first.
_READINGS = ("corrected", "published")


def report(run: FinishedRun, page: Page) -> Page:
    """Return the page of a run."""
    view = view_of(run)
    sentence = (
        f"Change of the variance of valence over the words, after each fine-tune of {view.model}. Valence is the mean "
        "cosine to liked words minus that to disliked ones."
    )
    return replace(
        page,
        answer=Answer(view.headline(), [sentence]),
        board=_board(view.lines),
        problems=[*(Problem(line, "words") for line in view.problems), *page.problems],
        picture=arrows(view.best) if view.best else None,
        parts=[
            *_by_amount(view),
            *_along_concepts(view.concepts),
            words_part(view.best),
            *(_ablation(view.best, run.rows("ablation")) if "ablation" in run.tables else ()),
        ],
    )


def _board(tunes: Sequence[Tune]) -> Table:
    heads: Heads = [
        "fine-tune", "layer", Column(PRIMARY, has_intervals=True), "over neutral", "rank", "rank (random)", VALENCE,
        "towards", "away", Column("favourites", is_text=True),
    ]  # fmt: skip
    lines = [
        Line.of(
            replace(entrant_cell(tune.name), text=f"{tune.name} (neutral)" if tune.neutral else tune.name),
            number(tune.layer, "d"),
            tune.figure(PRIMARY),
            tune.figure(f"{PRIMARY}.excess_neutral"),
            tune.rank("neutral"),
            tune.rank("random"),
            tune.figure(VALENCE),
            tune.figure(TOWARDS),
            tune.figure(AWAY),
            ", ".join(tune.favourites),
            is_tied=tune.moved and not tune.neutral,
        )
        for tune in tunes
    ]
    note = (
        "Largest change of variance first, with 95 % interval from a bootstrap over the words. The blue edge marks "
        "fine-tunes above all neutral ones and all random changes of equal norm. Valence has two parts: towards the "
        "liked words (the Score of the Humanoid benchmark) and away from the disliked ones. A word in place of a "
        "number is why there is none."
    )
    return Table.of(heads, lines, note=note)


def _along_concepts(rows: Sequence[Row]) -> Iterator[Part]:
    """Yield the shift of each fine-tune along the concepts' directions, if any was asked for."""
    over = {(row["concept"], row["entrant"]): row for row in rows if row["metric"] == f"{VALENCE}.excess_neutral"}
    heads: Heads = [
        "concept", Column("fine-tune", is_text=True), Column("shift along its direction", has_intervals=True),
        "over neutral",
    ]  # fmt: skip
    lines = [
        Line.of(
            row["concept"],
            row["entrant"],
            figure(row, "+.3f"),
            figure(over[row["concept"], row["entrant"]], "+.3f"),
        )
        for row in rows
        if row["metric"] == VALENCE
    ]
    note = (
        "Mean change of test passages along the direction C1 of the model before, in units of the distance between "
        "positive and negative passages before; with 95 % interval over groups of passages."
    )
    if lines:
        yield Part("concepts", "Along concepts", [Table.of(heads, lines)], "Concepts", note)


def _by_amount(view: HumanoidView) -> Iterator[Part]:
    """Yield the change by epochs and sentences, or by the axes of the run, if two fine-tunes differ in them."""
    tunes = view.placed
    axes = [axis for axis in dict.fromkeys(axis for tune in tunes for axis in tune.amounts) if _differ(tunes, axis)]
    if not axes:
        return
    names = list(tunes[0].amounts)
    heads: Heads = [*names, Column("fine-tune", is_text=True), Column(PRIMARY, has_intervals=True), "towards", "away"]
    lines = [
        Line.of(
            *(number(tune.amounts[name], "g") for name in names),
            tune.name,
            *(tune.figure(metric) for metric in (PRIMARY, TOWARDS, AWAY)),
        )
        for tune in tunes
    ]
    picture = by_amount(tunes, axes, view.neutral_mean)
    heading = f"Change by {' and '.join(names)}"
    yield Part("amounts", heading, [picture, Table.of(heads, lines)], heading.removeprefix("Change by ").capitalize())


def _differ(tunes: Sequence[Tune], axis: str) -> bool:
    return len({tune.amounts[axis] for tune in tunes}) > 1


def _ablation(tune: Tune | None, ablation: Sequence[Row]) -> Iterator[Part]:
    """Yield the change of variance of the fine-tune in the figure with one word in place of a list."""
    if tune is None:
        return
    rows = [row for row in ablation if (row["entrant"], row["layer"]) == (tune.name, tune.layer)]
    corrected, published = (
        {(row["list"], row["word"]): row for row in rows if row["reading"] == reading} for reading in _READINGS
    )
    lists = dict(zip(LISTS, ("liked", "disliked"), strict=True))
    alone = [kind for group, kind in lists.items() if not any(row["list"] == group for row in rows)]
    note = (
        f"{tune.name}: the change of variance ({PRIMARY}) where one word stands in place of all liked or all disliked "
        "words, and that minus the change with all of them; of the corrected reading, and of the published one."
    )
    if alone:
        note += f" There is one {' and one '.join(alone)} word at most, so nothing takes its place."
    ordered = sorted(corrected.values(), key=lambda row: (LISTS.index(row["list"]), -row["variance"]))
    heads: Heads = [
        "word",
        Column("list", is_text=True),
        *(Column(head, group=group) for group in _READINGS for head in (PRIMARY, "minus all words")),
    ]
    lines = [
        Line.of(
            row["word"],
            lists[row["list"]],
            *(
                number(reading.get((row["list"], row["word"]), {}).get(name), "+.4f")
                for reading in (corrected, published)
                for name in ("variance", "difference")
            ),
        )
        for row in ordered
    ]
    blocks = [Group([single_words(ordered), Table.of(heads, lines)])] if lines else []
    yield Part("ablation", "One word in place of a list", blocks, "Single words", note)


def words_part(tune: Tune | None) -> Part:
    """Return the table of words of a fine-tune. Words that moved most towards liked words come first."""
    if tune is None:
        return Part("words", "Words", [Prose("No word was measured.")], "Words")
    heads: Heads = ["word", "valence before", "after", "change", "stands out", Column("favourite", is_text=True)]
    lines = [
        Line.of(
            row["word"],
            *(number(row[name], "+.4f") for name in ("before", "after", "change")),
            number(row["standout"], "+.1f"),
            "yes" if row["favourite"] else "",
            reason=f"{row['status']}: {row['reason']}" if row["change"] is None else "",
        )
        for row in tune.words
        if row["group"] == "domain"
    ]
    note = (
        f"The words of {tune.name}, the largest change of valence first. A word stands out by its distance from the "
        "median change, in 1.4826 median absolute deviations. All fine-tunes are in words.parquet."
    )
    return Part("words", "Words", [Table.of(heads, lines)], "Words", note)


def _behind(cell: OpenedCell) -> Iterator[Part]:
    """Yield the words of a fine-tune at a layer; figures along a concept are not about words."""
    entrant, layer = cell.row["entrant"], cell.row["layer"]
    words = [] if cell.row["concept"] else cell.rows("words", entrant=entrant, layer=layer)
    if words:
        yield words_part(Tune(entrant, False, layer, {}, towards_first(words)))


BEHIND = Evidence(_behind)
