"""Choose a steering vector among candidates, and read its gain on openings that the choice never saw.

The best of many noisy figures is too high by construction (the winner's curse). So the openings are split in two, as
for `d2.best_gain`: vector and strength are chosen together on the first half, and the gain is read on the second half,
where the chosen one is also compared with the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from poolbench.errors import CellError
from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.paired import paired_permutation_test
from poolbench.statistics.response import ResponseGrid, align_openings, best_column
from poolbench.statuses import Status
from poolbench_driver.measures.response import (
    SteeringRules,
    gain_at,
    opening_interval,
)
from poolbench_driver.pages.boards.ranking import LEVEL
from poolbench_driver.statistics.multiple import benjamini_hochberg


@dataclass(frozen=True, order=True)
class Candidate:
    """A direction that a run has steered along."""

    layer: int
    entrant: str  # strategy, and construction where it is a further one
    strategy: str
    construction: str


class GainAt(NamedTuple):
    """Mean rise of the score over unsteered at a strength, with its 95 % interval if resamples have a value."""

    strength: float
    gain: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Selection:
    """The chosen candidate, and the figures of all candidates.

    Attributes:
        chosen: The candidate with the highest gain on the openings of the choice.
        strength: The fluent strength of that gain, in the run's unit.
        gain: Mean rise of the score over unsteered, on the other openings.
        interval: 95 % interval of `gain` over these openings; None where resamples have no value.
        openings: Openings that `gain` was read on.
        wrong_way: Share of these openings whose score falls at `strength`, which a mean hides (Tan et al. 2024,
            "Analyzing the Generalization and Reliability of Steering Vectors").
        wrong_way_interval: Exact 95 % interval of `wrong_way` (Clopper and Pearson 1934).
        curve: Gain of the chosen candidate on the openings of the choice, at each strength above 0, ascending.
        naive: Gain of the chosen candidate on the openings of the choice, which is the highest of all candidates.
        gains: By candidate, the gain on the other openings at the candidate's chosen strength, best first.
        strengths: By candidate, the chosen strength.
        tied: Candidates that the other openings cannot tell apart from the chosen one, itself among them: paired
            permutation tests, corrected for their number (Benjamini and Hochberg 1995).
        excluded: By candidate, why it could not be chosen.
    """

    chosen: Candidate
    strength: float
    gain: float
    interval: tuple[float, float] | None
    openings: Sequence[str]
    wrong_way: float
    wrong_way_interval: tuple[float, float]
    curve: Sequence[GainAt]
    naive: float
    gains: Mapping[Candidate, float]
    strengths: Mapping[Candidate, float]
    tied: frozenset[Candidate]
    excluded: Mapping[Candidate, str]

    @property
    def num_openings(self) -> int:
        """Return how many openings `gain` was read on."""
        return len(self.openings)

    @property
    def optimism(self) -> float:
        """Return by how much the naive figure is too high, as far as this one split of the openings tells."""
        return self.naive - self.gain


def select(grids: Mapping[Candidate, ResponseGrid], rules: SteeringRules) -> Selection:
    """Return the best candidate, chosen on one half of the openings and read on the other.

    Args:
        grids: The texts of each candidate. Each strength is chosen on all openings that its candidate has: the texts of
            the other half exist at this strength alone. Candidates are compared on the openings that all of them have.
        rules: Which texts are fluent, and the seed of the split.

    Raises:
        CellError: `too_few` openings, or `not_fluent` at any strength of any candidate.
    """
    from scipy import stats

    candidates = sorted(grids)
    aligned = dict(zip(candidates, align_openings([grids[one] for one in candidates]), strict=True))
    choose, read = aligned[candidates[0]].halves
    columns, gains, excluded = dict[Candidate, int](), dict[Candidate, float](), dict[Candidate, str]()
    for candidate, grid in aligned.items():
        try:
            whole_grid = grids[candidate]
            column = best_column(whole_grid.at_openings(whole_grid.halves[0]), rules)
            gains[candidate], columns[candidate] = _gain(grid.at_openings(read), column), column
        except CellError as error:
            excluded[candidate] = str(error)
    if not columns:
        raise CellError(Status.NOT_FLUENT, f"no candidate can be chosen: {next(iter(excluded.values()))}")
    gains_where_best = {one: _gain(aligned[one].at_openings(choose), column) for one, column in columns.items()}
    best = max(columns, key=lambda one: gains_where_best[one])
    rises = {one: aligned[one].score[read, column] - aligned[one].score[read, 0] for one, column in columns.items()}
    ordered = sorted(columns, key=lambda one: (one != best, -gains[one]))
    p_values = np.array([paired_permutation_test(rises[best] - rises[one]).p_value for one in ordered[1:]])
    is_tied = [True, *(benjamini_hochberg(p_values) > LEVEL)]
    weights = bootstrap_counts(len(read), rules.num_bootstrap, rules.seed)
    samples = gain_at(aligned[best].at_openings(read), columns[best], weights)
    num_wrong = int((rises[best] < 0).sum())
    low, high = stats.binomtest(num_wrong, len(read)).proportion_ci(rules.level, "exact")
    return Selection(
        best,
        float(aligned[best].strengths[columns[best]]),
        gains[best],
        opening_interval(samples, len(read), level=rules.level),
        aligned[best].at_openings(read).openings,
        num_wrong / len(read),
        (float(low), float(high)),
        list(_curve(aligned[best].at_openings(choose), rules)),
        gains_where_best[best],
        {one: gains[one] for one in ordered},
        {one: float(aligned[one].strengths[columns[one]]) for one in ordered},
        frozenset(one for one, is_equal in zip(ordered, is_tied, strict=True) if is_equal),
        excluded,
    )


def _curve(grid: ResponseGrid, rules: SteeringRules) -> Iterator[GainAt]:
    weights_RP = bootstrap_counts(len(grid.openings), rules.num_bootstrap, rules.seed)
    for column in range(1, len(grid.strengths)):
        interval = opening_interval(gain_at(grid, column, weights_RP), len(grid.openings), level=rules.level)
        yield GainAt(float(grid.strengths[column]), _gain(grid, column), interval)


def _gain(grid: ResponseGrid, column: int) -> float:
    return float(gain_at(grid, column, np.ones((1, len(grid.openings))))[0])
