"""What a run of preference shift says: which words moved, whether neutral fine-tunes do the same, and the figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.contract.page import (
    Answer,
    Cell,
    Column,
    Heads,
    Line,
    Page,
    Part,
    Picture,
    Problem,
    Prose,
    Span,
    Table,
)
from poolbench_driver.pages.drawing import ACCENT, COLOURS, GREY, INK, gridded, svg
from poolbench_driver.pages.plain import figure, number
from poolbench_driver.suites.humanoid.metrics import PRIMARY
from poolbench_driver.suites.humanoid.plan import MIN_NEUTRAL

if TYPE_CHECKING:
    import pyarrow as pa

#: The figure of a shift along a concept's direction.
_ALONG = "shift.valence"
#: Words that the figure and the text name, besides favourites.
_NAMED = 3


@dataclass(frozen=True)
class Tune:
    """A fine-tune on the board, at one layer."""

    name: str
    neutral: bool
    layer: int
    figures: Mapping[str, Row]  # result rows by metric
    words: Sequence[Row]  # its words, the one that moved most towards what is liked first

    def value(self, metric: str) -> float | None:
        """Return a figure; None where it is null or was not asked for."""
        return self.figures.get(metric, {}).get("value")

    def figure(self, metric: str) -> Cell:
        """Return a figure, or why there is none."""
        return figure(self.figures.get(metric), "+.4f")

    def rank(self, suffix: str) -> Cell:
        """Return the rank among the neutral fine-tunes or the random changes, such as `1 of 6`."""
        row = self.figures.get(f"{PRIMARY}.rank_{suffix}")
        if row is None or row["value"] is None:
            return figure(row)
        return Cell(f"{row['value']:.0f} of {row['n']}", row["value"])

    @property
    def favourites(self) -> list[str]:
        """Return the words that stand out more than any word of a neutral fine-tune."""
        return [row["word"] for row in self.words if row["favourite"]]

    @property
    def moved(self) -> bool:
        """Return whether it is above all neutral fine-tunes, and above all random changes if these have a rank."""
        return self._rank("neutral") == 1 and self._rank("random") in (1, None)

    @property
    def judged(self) -> bool:
        """Return whether it has a rank among the neutral fine-tunes."""
        return self._rank("neutral") is not None

    def _rank(self, suffix: str) -> float | None:
        return self.value(f"{PRIMARY}.rank_{suffix}")


@dataclass(frozen=True)
class View:
    """What the page shows: the board in order, the nulls of the data, and shifts along concepts."""

    model: str
    lines: Sequence[Tune]
    problems: Sequence[str]
    concepts: Sequence[Row]

    @cached_property
    def best(self) -> Tune | None:
        """Return the fine-tune that the figure shows: the first of the answer that is not neutral."""
        return next((line for line in self._answering if not line.neutral and line.words), None)

    @property
    def _answering(self) -> list[Tune]:
        """Return the lines that the answer is about: of the deepest layer, so that a fine-tune counts once."""
        deepest = max((line.layer for line in self.lines), default=None)
        return [line for line in self.lines if line.layer == deepest]

    def headline(self) -> list[Span]:
        """Return the answer in pieces."""
        tunes = [line for line in self._answering if not line.neutral]
        neutral = sum(line.neutral and line.value(PRIMARY) is not None for line in self._answering)
        measured = [line for line in tunes if line.value(PRIMARY) is not None]
        if not measured:
            return [Span("No fine-tune could be measured.")]
        if not any(line.judged for line in measured):
            few = f" moved the words most; without {MIN_NEUTRAL} neutral fine-tunes nothing says whether that is much."
            return [Span(measured[0].name, True), Span(few)]
        moved = [line for line in measured if line.moved]
        if not moved:
            return [Span("No fine-tune moved the words more than neutral fine-tunes and random changes do.")]
        many = f"{len(moved)} of {len(tunes)} fine-tunes" if len(tunes) > 1 else "The fine-tune"
        lead = f"{many} moved the words more than all {neutral} neutral ones do"
        counts = Counter(word for line in moved for word in line.favourites)
        if not counts:
            return [Span(f"{lead}, and no single word stands out.")]
        pieces = [Span(f"{lead}. {'Favourites:' if len(counts) > 1 else 'The favourite is'} ")]
        for place, (word, times) in enumerate(counts.most_common(_NAMED)):
            among = f" (in {times} of {len(moved)})" if len(moved) > 1 else ""
            is_last = place + 1 == min(_NAMED, len(counts))
            pieces += [Span(word, True), Span(among if is_last else f"{among}, ")]
        more = len(counts) - _NAMED
        return [*pieces, Span(f" and {more} more." if more > 0 else ".")]


def report(tables: Mapping[str, pa.Table]) -> Page:
    """Return the page of a run from its tables. Raise NotFoundError if the run has no results yet."""
    view = _view(tables)
    sentence = (
        f"Change of the variance of valence over the words, after each fine-tune of {view.model}. Valence is the mean "
        "cosine to liked words minus that to disliked ones."
    )
    return Page(
        title="Preference shift",
        subject=view.model,
        answer=Answer(view.headline(), [sentence]),
        board=_board(view.lines),
        problems=[Problem(line) for line in view.problems],
        picture=_picture(view.best) if view.best else None,
        parts=[*_along_concepts(view.concepts), _words(view.best)],
    )


def _board(tunes: Sequence[Tune]) -> Table:
    heads: Heads = [
        "fine-tune", "layer", Column(PRIMARY, has_intervals=True), "over neutral", "rank", "rank (random)", _ALONG,
        Column("favourites", is_text=True),
    ]  # fmt: skip
    lines = [
        Line.of(
            f"{tune.name} (neutral)" if tune.neutral else tune.name,
            number(tune.layer, "d"),
            tune.figure(PRIMARY),
            tune.figure(f"{PRIMARY}.excess_neutral"),
            tune.rank("neutral"),
            tune.rank("random"),
            tune.figure(_ALONG),
            ", ".join(tune.favourites),
            is_tied=tune.moved and not tune.neutral,
        )
        for tune in tunes
    ]
    note = (
        "Largest change of variance first, with 95 % interval from a bootstrap over the words. The blue edge marks "
        "fine-tunes above all neutral ones and all random changes of equal norm. A word in place of a number is why "
        "there is none."
    )
    return Table.of(heads, lines, note=note)


def _picture(tune: Tune) -> Picture:
    captions = [f"{tune.name}: each word before (dot) and after (arrow)", "+ liked, − disliked words, after"]
    share = tune.value("shift.plane_share")
    if share is not None:
        captions.append(f"the plane shows {100 * share:.0f} % of the variance")
    return Picture(arrows(tune), [Cell(caption) for caption in captions])


def _along_concepts(rows: Sequence[Row]) -> Iterator[Part]:
    """Yield the shift of each fine-tune along the concepts' directions, if any was asked for."""
    over = {(row["concept"], row["entrant"]): row for row in rows if row["metric"] == f"{_ALONG}.excess_neutral"}
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
        if row["metric"] == _ALONG
    ]
    note = (
        "Mean change of test passages along the direction C1 of the model before, in units of the distance between "
        "positive and negative passages before; with 95 % interval over groups of passages."
    )
    if lines:
        yield Part("concepts", "Along concepts", [Table.of(heads, lines)], "Concepts", note)


def _words(tune: Tune | None) -> Part:
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


def _view(tables: Mapping[str, pa.Table]) -> View:
    rows = tables["results"].to_pylist()
    words = tables["words"].to_pylist()
    figures_by_tune: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        if row["entrant"] and row["concept"] is None and row["metric"] != "rank.mean":
            figures_by_tune.setdefault((row["entrant"], row["layer"]), {})[row["metric"]] = row
    neutral = {row["entrant"] for row in tables["tunes"].to_pylist() if row["neutral"]}
    lines = [
        Tune(name, name in neutral, layer, figures, _ordered(words, name, layer))
        for (name, layer), figures in figures_by_tune.items()
    ]
    lines.sort(key=lambda line: (line.value(PRIMARY) is None, -(line.value(PRIMARY) or 0.0)))
    notes = [row["note"] for row in tables["notes"].to_pylist()]
    concepts = [row for row in rows if row["concept"] and row["metric"].startswith(_ALONG)]
    return View(rows[0]["model"], lines, [*_problems(lines), *notes], concepts)


def _ordered(words: Sequence[Row], name: str, layer: int) -> list[Row]:
    tune_words = [row for row in words if (row["entrant"], row["layer"]) == (name, layer)]
    return sorted(tune_words, key=lambda row: (row["change"] is None, -(row["change"] or 0.0)))


def _problems(lines: Sequence[Tune]) -> Iterator[str]:
    """Yield one line for each figure of the board that is null, and for words that could not be measured."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        for metric in (PRIMARY, f"{PRIMARY}.excess_neutral", f"{PRIMARY}.rank_random"):
            row = line.figures.get(metric)
            if row is not None and row["status"] != Status.OK:
                counts[metric, row["status"], row["reason"] or ""] += 1
    for (metric, status, reason), count in counts.items():
        yield f"{metric} of {count} fine-tune{'s' if count > 1 else ''} is null, {status}: {reason}"
    for line in lines:
        unread = [row for row in line.words if row["group"] == "domain" and row["change"] is None]
        if unread:
            yield f"{line.name}: {len(unread)} words could not be measured: {unread[0]['reason']}"


def arrows(line: Tune) -> str:
    """Return the words before and after a fine-tune in the plane of the first two principal components."""
    placed = [row for row in line.words if row["x_before"] is not None]
    domain = [row for row in placed if row["group"] == "domain"]
    label_words = {row["word"] for row in domain[:_NAMED]} | set(line.favourites)

    def draw(axes: Any) -> None:
        for group, sign, colour in (("positive", "$+$", COLOURS[2]), ("negative", "$-$", COLOURS[1])):
            words = [row for row in placed if row["group"] == group]
            axes.plot(
                [r["x_after"] for r in words], [r["y_after"] for r in words], ls="", marker=sign, color=colour, ms=6
            )
        for row in domain:
            strong = row["word"] in label_words
            axes.annotate(
                "", (row["x_after"], row["y_after"]), (row["x_before"], row["y_before"]),
                arrowprops={"arrowstyle": "->", "color": ACCENT if strong else GREY, "lw": 1.6 if strong else 0.8,
                            "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
            if strong:
                place = (row["x_after"], row["y_after"])
                axes.annotate(
                    row["word"], place, (5, 4), textcoords="offset points", fontweight="bold", color=INK,
                    parse_math=False,  # a word may hold dollars
                )  # fmt: skip
        axes.plot([r["x_before"] for r in domain], [r["y_before"] for r in domain], ".", color=GREY, ms=3)
        gridded(axes, "first principal component", "second principal component")

    return svg((6.6, 4.4), "preference shift", f"Words before and after {line.name}", draw)
