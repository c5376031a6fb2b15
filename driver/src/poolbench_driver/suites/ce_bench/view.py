"""What the tables of a run say: entrants, which of them beats which, what is wrong, and a subject opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from poolbench.contracts import Row
from poolbench_driver.contract.page import Problem, Span
from poolbench_driver.pages.plain import figures_by
from poolbench_driver.statistics.correlation import pearson, spearman
from poolbench_driver.suites.ce_bench.concepts import sparse_means
from poolbench_driver.suites.ce_bench.families import (
    AUTOENCODER,
    COORDINATES,
    RANDOM,
    Families,
    SaeEntrant,
    families_of,
)
from poolbench_driver.suites.ce_bench.metrics import (
    CONTRASTIVE,
    EXCESS,
    HELD_OUT,
    INDEPENDENT,
    LOG_WIDTH,
    MINUS_L0,
    PRIMARY,
)

if TYPE_CHECKING:
    from poolbench_driver.contract.suite import FinishedRun

#: Share of dead features from which a line of the page says so.
_MANY_DEAD = 0.5
#: Share of pairs in one order from which a score is said to follow a size, and fewest autoencoders for that.
_FOLLOWS, _FEWEST = 0.8, 4


@dataclass(frozen=True)
class CeBenchView:
    """The entrants of one or several runs, the best first.

    Attributes:
        dataset: Name of the set of stories.
        published: The entrants with figures by the published definition. Empty if the run did not measure these.
        stories: The first pair of stories of each subject.
    """

    model: str
    dataset: str
    entrants: Sequence[SaeEntrant]
    published: Sequence[SaeEntrant] = ()
    stories: Mapping[str, Row] = field(default_factory=dict, repr=False)

    @cached_property
    def trained(self) -> list[SaeEntrant]:
        """Return the autoencoders that have a score."""
        return [sae for sae in self.entrants if sae.kind == AUTOENCODER and sae.value(PRIMARY) is not None]

    @cached_property
    def tied(self) -> set[str]:
        """Return the names of the best autoencoder and of all autoencoders that the best does not beat."""
        return {sae.name for sae in self.trained if sae is self.trained[0] or not self.trained[0].beats(sae)}

    @cached_property
    def families(self) -> Families:
        """Return the autoencoders that differ by the seed of their training alone."""
        return families_of(self.entrants)

    def nulls_of(self, one: SaeEntrant) -> list[SaeEntrant]:
        """Return the baselines of an autoencoder: random directions of its width and L0, and the coordinates."""
        return [
            entrant
            for entrant in self.entrants
            if entrant.null_of == one.name
            or (entrant.kind == COORDINATES and (entrant.model, entrant.layer) == (one.model, one.layer))
        ]

    def headline(self) -> list[Span]:
        """Return the answer in pieces of text. Pieces that name an autoencoder are emphasised."""
        if not self.trained:
            return [Span("No autoencoder has a score.")]
        best, count = self.trained[0], len(self.trained)
        others, better = len(self.tied) - 1, self._num_better()
        if count == 1:
            return [Span(best.name, True), Span(f" {'beats' if better else 'does not beat both'} {_NULLS}.")]
        lead = f" scores highest, and {others} more cannot be distinguished from it" if others else " scores highest"
        counted = f"All {count}" if better == count else f"{better} of {count}" if better else f"None of the {count}"
        return [Span(best.name, True), Span(f"{lead}. {counted} autoencoders beat {_NULLS}.")]

    def _num_better(self) -> int:
        return sum(all(sae.beats(null) for null in self.nulls_of(sae)) for sae in self.trained)

    def certainty(self) -> str:
        """Return the sentence with the figures behind the answer, or "" without an autoencoder."""
        if not self.trained:
            return ""
        best = self.trained[0]
        nulls = [f"{_KINDS[null.kind]} {null.figure(PRIMARY).text}" for null in self.nulls_of(best)]
        answer = f"{best.name}: {best.figure(PRIMARY).text} ({best.interval() or 'no interval'}); {', '.join(nulls)}."
        held = best.value(HELD_OUT)
        if held is not None:
            answer += f" Of the pairs that did not choose it, one feature gets {100 * held:.0f} % right (chance 50 %)."
        return answer

    def problems(self) -> list[Problem]:
        """Return the limits of the answer, the most important first."""
        problems = [*self._limits(), *self._of_one_training(), *self._wrong_entrants()]
        if self.dataset == "planted":
            problems.append(Problem(_PLANTED, "made"))
        return problems

    def _limits(self) -> Iterator[Problem]:
        if not self.trained:
            return
        best = self.trained[0]
        excess = best.figures.get(EXCESS, {})
        if excess.get("value") is not None and not (excess["ci_low"] is not None and excess["ci_low"] > 0):
            excess_text = f"{excess['value']:.3f}" + (f", {best.interval(EXCESS)}" if best.interval(EXCESS) else "")
            yield Problem(
                "Nothing shows that the score comes from the contrast: two stories of the same side differ as much as "
                f"the two sides (excess of {best.name} {excess_text}).",
                "leaderboard",
            )
        saes = [sae for sae in self.trained if sae.value(HELD_OUT) is not None]
        twins = {entrant.null_of: entrant for entrant in self.entrants if entrant.kind == RANDOM}
        above = [sae for sae in saes if sae.beats(twins[sae.name], "held_out")]
        if len(above) < len(saes):
            yield Problem(
                f"On pairs that did not choose the feature, {len(saes) - len(above)} of {len(saes)} autoencoders do "
                "no better than their random directions.",
                "leaderboard",
            )
        if len(self.trained) < _FEWEST:
            return
        for size, name in ((MINUS_L0, "fewer features per token"), (LOG_WIDTH, "more features")):
            share = agreement(self.trained, PRIMARY, size)
            if share is not None and share >= _FOLLOWS:
                yield Problem(f"{name.capitalize()} alone order {100 * share:.0f} % of the pairs alike.", "size")

    def _of_one_training(self) -> Iterator[Problem]:
        if self.trained:
            anchor = "seeds" if self.families.all else "leaderboard"
            yield from (Problem(text, anchor) for text in self.families.limits())

    def _wrong_entrants(self) -> Iterator[Problem]:
        for entrant in self.entrants:
            row = entrant.figures.get(PRIMARY)
            coverage = None if row is None else row["coverage"]
            if coverage is not None and coverage < 1 and entrant.kind == AUTOENCODER:
                yield Problem(f"{entrant.name}: {100 * (1 - coverage):.0f} % of the pairs are left out")
            dead = entrant.value("ce.dead_share")
            if entrant.kind == AUTOENCODER and dead is not None and dead > _MANY_DEAD:
                yield Problem(
                    f"{entrant.name}: {100 * dead:.0f} % of its features are zero on all stories", "leaderboard"
                )

    def by_size(self) -> list[tuple[str, ...]]:
        """Return how scores agree with each score of size: share of the pairs of autoencoders, Spearman, Pearson."""
        lines = []
        for score in (PRIMARY, CONTRASTIVE, INDEPENDENT, HELD_OUT):
            cells = [score]
            for size in (MINUS_L0, LOG_WIDTH):
                share = agreement(self.trained, score, size)
                cells.append("" if share is None else f"{100 * share:.0f} %")
                cells += ("" if value is None else f"{value:.2f}" for value in correlations(self.trained, score, size))
            lines.append(tuple(cells))
        return lines

    def opened(self) -> Row | None:
        """Return the subject that the best autoencoder separates most clearly, with its first pair of stories."""
        rows = [row for row in self.of_subjects() if row["subject"] in self.stories]
        return self.stories[rows[0]["subject"]] | rows[0] if rows else None

    def of_subjects(self) -> list[Row]:
        """Return the best autoencoder's rows of subjects with a contrastive score, the highest score first.

        Without an autoencoder, the list is empty.
        """
        if not self.trained:
            return []
        return clearest_first(self.trained[0].subjects.values())


def clearest_first(subjects: Iterable[Row]) -> list[Row]:
    """Return the subjects that have a score, the clearest contrast first."""
    scored = [row for row in subjects if row["contrastive"] is not None]
    return sorted(scored, key=lambda row: (-row["contrastive"], row["subject"]))


_PLANTED = "Stories are written by a grammar: a diagnostic, never ranked with real text."
_NULLS = "random directions of equal width and L0 and the coordinates of the layer"
_KINDS = {RANDOM: "random directions", COORDINATES: "coordinates"}


def agreement(entrants: Sequence[SaeEntrant], first: str, second: str) -> float | None:
    """Return the share of pairs of entrants that two scores order alike. Ties count one half. None without a pair."""
    hits = []
    for a, b in combinations(entrants, 2):
        values: list[Any] = [entrant.value(metric) for metric in (first, second) for entrant in (a, b)]
        if None in values:
            continue
        first_gap, second_gap = values[0] - values[1], values[2] - values[3]
        hits.append(0.5 if first_gap == 0 or second_gap == 0 else float((first_gap > 0) == (second_gap > 0)))
    return sum(hits) / len(hits) if hits else None


def correlations(entrants: Sequence[SaeEntrant], first: str, second: str) -> tuple[float | None, float | None]:
    """Return the Spearman and the Pearson correlation between two scores of entrants.

    Both are None if fewer than three entrants have both scores, or if a score is constant.
    """
    both = [(entrant.value(first), entrant.value(second)) for entrant in entrants]
    values = np.array([pair for pair in both if None not in pair], dtype=np.float64).reshape(-1, 2).T
    rank, linear = (float(correlation(*values)) for correlation in (spearman, pearson))
    return None if np.isnan(rank) else rank, None if np.isnan(linear) else linear


def view_of(run: FinishedRun) -> CeBenchView:
    """Read the tables of a run."""
    rows = run.rows("results")
    published = [row for row in run.rows("published") if row["entrant"]]
    stories = {row["subject"]: row for row in run.rows("stories")}
    published_entrants = _entrants(run, published) if published else []
    return CeBenchView(rows[0]["model"], rows[0]["dataset"], _entrants(run, rows), published_entrants, stories)


def view_over(runs: Sequence[FinishedRun]) -> CeBenchView:
    """Read the tables of several runs together. The names of entrants include the model if there are several."""
    views = [view_of(run) for run in runs]
    models = list(dict.fromkeys(view.model for view in views))
    # Runs may read other concepts, whose means do not compare.
    entrants: dict[str, SaeEntrant] = {}
    for view in views:
        prefix = f"{view.model} " if len(models) > 1 else ""
        for entrant in view.entrants:
            name, null_of = f"{prefix}{entrant.name}", entrant.null_of and f"{prefix}{entrant.null_of}"
            entrants.setdefault(name, replace(entrant, name=name, null_of=null_of, sparse={}, model=view.model))
    ordered = sorted(entrants.values(), key=_order)
    return CeBenchView(", ".join(models), views[0].dataset, ordered, stories=views[0].stories)


def _order(entrant: SaeEntrant) -> tuple[bool, float, str]:
    return entrant.value(PRIMARY) is None, -(entrant.value(PRIMARY) or 0.0), entrant.name


def _entrants(run: FinishedRun, rows: Sequence[Row]) -> list[SaeEntrant]:
    figures = figures_by(rows, "entrant")
    subjects: dict[str, dict[str, Row]] = {}
    for row in run.rows("subjects"):
        subjects.setdefault(row["entrant"], {})[row["subject"]] = row
    sparse = sparse_means(rows)
    entrants = [
        SaeEntrant(
            name,
            entrant_row["kind"],
            entrant_row["layer"],
            entrant_row["architecture"],
            figures[name,],
            subjects.get(name, {}),
            entrant_row["family"],
            entrant_row["seed"],
            entrant_row["null_of"],
            sparse.get(name, {}),
        )
        for entrant_row in run.rows("entrants")
        for name in [entrant_row["entrant"]]
    ]
    return sorted(entrants, key=_order)
