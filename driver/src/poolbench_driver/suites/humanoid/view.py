"""What the page of a run shows: fine-tunes with their figures and words, the answer, and what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from poolbench.contracts import Row
from poolbench.grouping import grouped
from poolbench_driver.contract.page import Cell, Span
from poolbench_driver.pages.plain import HasFigures, figure, figures_by
from poolbench_driver.results import is_rank
from poolbench_driver.suites.humanoid.metrics import PRIMARY, VALENCE
from poolbench_driver.suites.humanoid.plan import MIN_NEUTRAL

if TYPE_CHECKING:
    from poolbench_driver.contract.suite import FinishedRun

#: Words that the figure and the text name, besides favourites.
NAMED = 3


@dataclass(frozen=True)
class Tune(HasFigures):
    """A fine-tune on the board, at one layer."""

    name: str
    neutral: bool
    layer: int
    figures: Mapping[str, Row]  # result rows by metric
    words: Sequence[Row]  # its words, the one that moved most towards what is liked first
    amounts: Mapping[str, float] = field(default_factory=dict)  # its numbers on the axes, such as epochs

    def figure(self, metric: str) -> Cell:
        """Return a figure, or why there is none."""
        return figure(self.figures.get(metric), "+.4f")

    def rank(self, suffix: str) -> Cell:
        """Return the rank among the neutral fine-tunes or the random changes, such as `1 of 6`."""
        row = self.figures.get(f"{PRIMARY}.rank_{suffix}")
        if row is None or row["value"] is None:
            return figure(row)
        return replace(figure(row), text=f"{row['value']:.0f} of {row['n']}")

    @property
    def favourites(self) -> list[str]:
        """Return the words that stand out more than any word of a neutral fine-tune."""
        return [row["word"] for row in self.words if row["favourite"]]

    @property
    def moved(self) -> bool:
        """Return whether the fine-tune ranks above all neutral fine-tunes and above any random changes of the run."""
        return self._ranks == {1}

    @property
    def judged(self) -> bool:
        """Return whether the fine-tune has a rank among neutral fine-tunes, and among random changes (if any)."""
        return None not in self._ranks

    @property
    def _ranks(self) -> set[float | None]:
        neutral, random = f"{PRIMARY}.rank_neutral", f"{PRIMARY}.rank_random"
        return {self.value(neutral)} | ({self.value(random)} if random in self.figures else set())


@dataclass(frozen=True)
class HumanoidView:
    """The content of the page: the board in order, words that could not be measured, and shifts along concepts."""

    model: str
    lines: Sequence[Tune]
    problems: Sequence[str]
    concepts: Sequence[Row]

    @cached_property
    def best(self) -> Tune | None:
        """Return the fine-tune that the figure shows: the first of the answer that is not neutral."""
        return next((line for line in self._answering if not line.neutral and line.words), None)

    @property
    def placed(self) -> list[Tune]:
        """Return the fine-tunes with numbers on axes, in the order of these."""
        placed = [line for line in self._answering if line.amounts and line.value(PRIMARY) is not None]
        return sorted(placed, key=lambda line: (*line.amounts.values(), line.name))

    @property
    def neutral_mean(self) -> float | None:
        """Return the mean change of variance of the neutral fine-tunes."""
        values = [value for line in self._answering if line.neutral and (value := line.value(PRIMARY)) is not None]
        return fmean(values) if values else None

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
            is_ranked = measured[0].value(f"{PRIMARY}.rank_neutral") is not None
            lacking = "a rank among random changes" if is_ranked else f"{MIN_NEUTRAL} neutral fine-tunes"
            few = f" moved the words most; without {lacking} nothing says whether that is much."
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
        for place, (word, times) in enumerate(counts.most_common(NAMED)):
            among = f" (in {times} of {len(moved)})" if len(moved) > 1 else ""
            is_last = place + 1 == min(NAMED, len(counts))
            pieces += [Span(word, True), Span(among if is_last else f"{among}, ")]
        more = len(counts) - NAMED
        return [*pieces, Span(f" and {more} more." if more > 0 else ".")]


def view_of(run: FinishedRun) -> HumanoidView:
    """Read the tables of a run."""
    rows, tunes = run.rows("results"), run.rows("tunes")
    words = grouped(((row["entrant"], row["layer"]), row) for row in run.rows("words"))
    of_words = (row for row in rows if row["entrant"] and row["concept"] is None and not is_rank(row))
    neutral = {row["entrant"] for row in tunes if row["neutral"]}
    amounts = {row["entrant"]: json.loads(row.get("amounts") or "{}") for row in tunes}
    lines = [
        Tune(name, name in neutral, layer, figures, towards_first(words.get((name, layer), ())), amounts.get(name, {}))
        for (name, layer), figures in figures_by(of_words, "entrant", "layer").items()
    ]
    lines.sort(key=lambda line: (line.value(PRIMARY) is None, -(line.value(PRIMARY) or 0.0)))
    concepts = [row for row in rows if row["concept"] and row["metric"].startswith(VALENCE)]
    return HumanoidView(rows[0]["model"], lines, list(_problems(lines)), concepts)


def towards_first(words: Iterable[Row]) -> list[Row]:
    """Sort the words of a fine-tune. Words that moved most towards liked words come first."""
    return sorted(words, key=lambda row: (row["change"] is None, -(row["change"] or 0.0)))


def _problems(lines: Sequence[Tune]) -> Iterator[str]:
    """Yield one line for each fine-tune with words that could not be measured."""
    for line in lines:
        unread = [row for row in line.words if row["group"] == "domain" and row["change"] is None]
        if unread:
            yield f"{line.name}: {len(unread)} words could not be measured: {unread[0]['reason']}"
