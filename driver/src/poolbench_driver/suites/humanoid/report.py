"""What a run of preference shift says: which words moved, whether neutral fine-tunes do the same, and the figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.contract.suite import Report, Section
from poolbench_driver.pages.drawing import ACCENT, COLOURS, GREY, INK, bars, gridded, svg
from poolbench_driver.pages.markdown import table
from poolbench_driver.suites.humanoid.metrics import PRIMARY
from poolbench_driver.suites.humanoid.plan import MIN_NEUTRAL

if TYPE_CHECKING:
    import pyarrow as pa

#: The figure of a shift along a concept's direction.
_ALONG = "shift.valence"
#: Words that the figure and the text name, besides favourites.
_NAMED = 3


@dataclass(frozen=True)
class Line:
    """A fine-tune on the board, at one layer."""

    name: str
    neutral: bool
    layer: int
    figures: Mapping[str, Row]  # result rows by metric
    words: Sequence[Row]  # its words, the one that moved most towards what is liked first

    def value(self, metric: str) -> float | None:
        """Return a figure; None where it is null or was not asked for."""
        return self.figures.get(metric, {}).get("value")

    def text(self, metric: str, digits: int = 4) -> str:
        """Return a figure, or why there is none."""
        row = self.figures.get(metric)
        if row is None:
            return ""
        return row["status"] if row["value"] is None else f"{row['value']:+.{digits}f}"

    def rank(self, suffix: str) -> str:
        """Return the rank among the neutral fine-tunes or the random changes, such as `1 of 6`."""
        row = self.figures.get(f"{PRIMARY}.rank_{suffix}")
        if row is None:
            return ""
        return row["status"] if row["value"] is None else f"{row['value']:.0f} of {row['n']}"

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
    lines: Sequence[Line]
    problems: Sequence[str]
    concepts: Sequence[Row]

    @cached_property
    def best(self) -> Line | None:
        """Return the fine-tune that the figure shows: the first of the answer that is not neutral."""
        return next((line for line in self._answering if not line.neutral and line.words), None)

    @property
    def _answering(self) -> list[Line]:
        """Return the lines that the answer is about: of the deepest layer, so that a fine-tune counts once."""
        deepest = max((line.layer for line in self.lines), default=None)
        return [line for line in self.lines if line.layer == deepest]

    def headline(self) -> list[tuple[str, bool]]:
        """Return the answer in pieces, with whether each is a name."""
        tunes = [line for line in self._answering if not line.neutral]
        neutral = sum(line.neutral and line.value(PRIMARY) is not None for line in self._answering)
        measured = [line for line in tunes if line.value(PRIMARY) is not None]
        if not measured:
            return [("No fine-tune could be measured.", False)]
        if not any(line.judged for line in measured):
            few = f" moved the words most; without {MIN_NEUTRAL} neutral fine-tunes nothing says whether that is much."
            return [(measured[0].name, True), (few, False)]
        moved = [line for line in measured if line.moved]
        if not moved:
            return [("No fine-tune moved the words more than neutral fine-tunes and random changes do.", False)]
        many = f"{len(moved)} of {len(tunes)} fine-tunes" if len(tunes) > 1 else "The fine-tune"
        lead = [(f"{many} moved the words more than all {neutral} neutral ones do", False)]
        counts = Counter(word for line in moved for word in line.favourites)
        if not counts:
            return [*lead, (", and no single word stands out.", False)]
        pieces: list[tuple[str, bool]] = [
            *lead,
            (". Favourites: " if len(counts) > 1 else ". The favourite is ", False),
        ]
        for word, number in counts.most_common(_NAMED):
            among = f" (in {number} of {len(moved)})" if len(moved) > 1 else ""
            pieces += [(word, True), (f"{among}, ", False)]
        more = len(counts) - _NAMED
        return [*pieces[:-1], (pieces[-1][0].removesuffix(", ") + (f" and {more} more." if more > 0 else "."), False)]

    def answer(self) -> str:
        """Return the answer as text."""
        return "".join(text for text, _ in self.headline())


def report(tables: Mapping[str, pa.Table]) -> Report:
    """Return the page of a run from its tables. Raise NotFoundError if the run has no results yet."""
    view = _view(tables)
    picture = arrows(view.best) if view.best else None
    values = {
        "view": view,
        "picture": picture,
        "bars": bars([line.figures.get(PRIMARY, {}) for line in view.lines]),
        "metric": PRIMARY,
    }
    sections = [
        Section(__name__.rpartition(".")[0], f"{name}.html.j2", values, anchor, label)
        for name, anchor, label in (("first", "", ""), ("board", "leaderboard", "Board"), ("words", "words", "Words"))
    ]
    text = _markdown(view)
    return Report(
        f"Preference shift: {view.model}", sections, f"{view.answer()}\n\n{text}", f"{view.answer()}\n\n{text}"
    )


def _view(tables: Mapping[str, pa.Table]) -> View:
    rows = tables["results"].to_pylist()
    words = tables["words"].to_pylist()
    figures_by_tune: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        if row["entrant"] and row["concept"] is None and row["metric"] != "rank.mean":
            figures_by_tune.setdefault((row["entrant"], row["layer"]), {})[row["metric"]] = row
    neutral = {row["entrant"] for row in tables["tunes"].to_pylist() if row["neutral"]}
    lines = [
        Line(name, name in neutral, layer, figures, _ordered(words, name, layer))
        for (name, layer), figures in figures_by_tune.items()
    ]
    lines.sort(key=lambda line: (line.value(PRIMARY) is None, -(line.value(PRIMARY) or 0.0)))
    notes = [row["note"] for row in tables["notes"].to_pylist()]
    concepts = [row for row in rows if row["concept"] and row["metric"].startswith(_ALONG)]
    return View(rows[0]["model"], lines, [*_problems(lines), *notes], concepts)


def _ordered(words: Sequence[Row], name: str, layer: int) -> list[Row]:
    tune_words = [row for row in words if (row["entrant"], row["layer"]) == (name, layer)]
    return sorted(tune_words, key=lambda row: (row["change"] is None, -(row["change"] or 0.0)))


def _problems(lines: Sequence[Line]) -> Iterator[str]:
    """Yield one line for each figure of the board that is null, and for words that could not be measured."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        for metric in (PRIMARY, f"{PRIMARY}.excess_neutral", f"{PRIMARY}.rank_random"):
            row = line.figures.get(metric)
            if row is not None and row["status"] != Status.OK:
                counts[metric, row["status"], row["reason"] or ""] += 1
    for (metric, status, reason), number in counts.items():
        yield f"{metric} of {number} fine-tune{'s' if number > 1 else ''} is null, {status}: {reason}"
    for line in lines:
        unread = [row for row in line.words if row["group"] == "domain" and row["change"] is None]
        if unread:
            yield f"{line.name}: {len(unread)} words could not be measured: {unread[0]['reason']}"


def arrows(line: Line) -> Markup:
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


def _markdown(view: View) -> str:
    head = ["fine-tune", "layer", PRIMARY, "95 % interval", "over neutral", "rank", "rank (random)", "shift.valence",
            "favourites"]  # fmt: skip
    lines = []
    for line in view.lines:
        row = line.figures.get(PRIMARY, {})
        interval = "" if row.get("ci_low") is None else f"{row['ci_low']:+.4f} to {row['ci_high']:+.4f}"
        kind = " (neutral)" if line.neutral else ""
        lines.append(
            [
                f"{line.name}{kind}", str(line.layer), line.text(PRIMARY), interval,
                line.text(f"{PRIMARY}.excess_neutral"), line.rank("neutral"), line.rank("random"),
                line.text("shift.valence"), ", ".join(line.favourites),
            ]
        )  # fmt: skip
    parts = [table(head, lines), *(f"- {problem}" for problem in view.problems)]
    if view.concepts:
        head = ["concept", "fine-tune", "shift along its direction", "95 % interval", "over neutral"]
        parts.append(
            table(head, [_concept_cells(row, view.concepts) for row in view.concepts if row["metric"] == _ALONG])
        )
    return "\n\n".join(parts)


def _concept_cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """Return the cells of the shift of one fine-tune along one concept's direction."""
    same = [shift for shift in rows if (shift["concept"], shift["entrant"]) == (row["concept"], row["entrant"])]
    (over,) = (shift for shift in same if shift["metric"] == f"{_ALONG}.excess_neutral")
    interval = "" if row["ci_low"] is None else f"{row['ci_low']:+.3f} to {row['ci_high']:+.3f}"
    values = (shift["status"] if shift["value"] is None else f"{shift['value']:+.3f}" for shift in (row, over))
    return [row["concept"], row["entrant"], next(values), interval, next(values)]
