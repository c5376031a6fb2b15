"""D3: does steering move its own concept and leave the neighbour alone?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from poolbench.concepts import Concept
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.response import (
    ResponseGrid,
    align_openings,
    best_column,
    response_grids,
    single_grid,
)
from poolbench.statuses import Status
from poolbench_driver.measures.cosines import direction_vector
from poolbench_driver.measures.response import (
    PUBLISHED_STATISTICS,
    SteeringRules,
    gain_at,
    opening_interval,
    or_zeros,
    with_direction_spread,
)
from poolbench_driver.suites.poolbench.d2 import published_values
from poolbench_driver.suites.poolbench.steering_results import CellTexts, SteeredCell

CI_METHOD = "paired bootstrap over openings, expanded percentile, at the chosen strength"
EXCESS_CI_METHOD = f"{CI_METHOD}, with the spread of null directions"
#: Metric suffix of D3 by the neighbour's relation in the concept registry.
RELATIONS = {"ld": "linguistically_distant", "lc": "linguistically_close"}


@dataclass(frozen=True)
class ScorerPair:
    """The scorers of a steered concept and of its neighbour; `relation` is a key of `RELATIONS`."""

    target: GatedScorer
    neighbour: GatedScorer
    relation: str


def all_d3(
    scorers: Mapping[str, GatedScorer], directions: Callable[[str, str], pa.Table], cell: SteeredCell
) -> Iterator[Measure]:
    """Yield D3 of one (concept, strategy) against each neighbour.

    If the concept names no neighbour for a relation, the measures of this relation are null.

    `directions` returns DIRECTIONS of a concept and a strategy, or raises CellError.
    """
    concept, construction = cell.concept, cell.rules.direction
    for relation, name in RELATIONS.items():
        if getattr(concept.neighbours, name) is None:
            reason = f"concept {concept.id} names no {name.replace('_', ' ')} neighbour"
            error = CellError(Status.NO_SCORER, reason)
            for measure in blank_d3(relation, error):
                yield measure.with_fields(scorer=concept.id, direction=construction)
            yield Measure.failed(f"d3.rep_{relation}", error, direction=construction)
    for pair in scorer_pairs(scorers, concept):
        yield from d3_measures(cell.texts, pair, cell.rules)
        try:  # needs no texts
            tables = [directions(name, cell.strategy.id) for name in (concept.id, pair.neighbour.concept)]
            measure = d3_rep_measure(tables[0], tables[1], pair.relation, construction)
        except CellError as error:
            measure = Measure.failed(f"d3.rep_{pair.relation}", error)
        yield measure.with_fields(neighbour=pair.neighbour.concept, direction=construction)


def scorer_pairs(scorers: Mapping[str, GatedScorer], concept: Concept) -> Iterator[ScorerPair]:
    """Yield, for each neighbour that a concept names, the scorers of the concept and of the neighbour."""
    for relation, name in RELATIONS.items():
        if (neighbour := getattr(concept.neighbours, name)) is not None:
            yield ScorerPair(scorers[concept.id], scorers[neighbour], relation)


class Shifts:
    """Shifts of target and neighbour at the target's best strength.

    The strength is chosen on the first half of the target's openings, because openings of the second half may have
    texts at the chosen strength alone. The shifts are read on the `num_read` openings of the second half that target
    and neighbour share. Entry 0 of a shift [1 + R] is the value, and the other entries are bootstrap resamples. Raise
    CellError `not_fluent` as `best_column` does, and `too_few` as `align_openings` does.
    """

    def __init__(
        self, target: ResponseGrid, neighbour: ResponseGrid, units: tuple[float, float], rules: SteeringRules
    ) -> None:
        column = best_column(target.at_openings(target.halves[0]), rules)
        target, neighbour = align_openings([target, neighbour])
        _, read = target.halves
        weights = np.vstack([np.ones((1, len(read))), bootstrap_counts(len(read), rules.num_bootstrap, rules.seed)])
        self.strength = float(target.strengths[column])
        self.num_read = len(read)
        self.target = gain_at(target.at_openings(read), column, weights) / units[0]
        self.neighbour = gain_at(neighbour.at_openings(read), column, weights) / units[1]

    def robust(self) -> np.ndarray:
        """Return dA - |dB| [1 + R]: the shift of the target minus the size of the shift of the neighbour."""
        return self.target - np.abs(self.neighbour)

    def details(self) -> dict[str, float]:
        """Return the chosen strength and the two shifts."""
        return {
            "strength": self.strength,
            "target_shift": float(self.target[0]),
            "neighbour_shift": float(self.neighbour[0]),
        }


def d3_measures(
    texts: CellTexts | CellError,
    pair: ScorerPair,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
) -> list[Measure]:
    """Return D3 of one (concept, strategy) against one neighbour: the index, and the robust difference.

    A shift dX is the gain in the score of X at the target's best strength, divided by the range of the scorer of X on
    held-out passages. The strength is chosen on one half of the openings, and the shifts are read on the other half.

    Args:
        texts: Texts with SCORES of both scorers. An error in their place makes every figure null. The texts along null
            directions are used for `d3.robust_*.excess`.
        pair: The scorers of the steered concept and its neighbour.
        rules: Settings.

    Returns:
        `d3.<relation>`: 1 - dB / dA if the lower limit of dA is above 0, else null with `no_effect`, or with
        `reversed` if the upper limit is below 0. `d3.robust_<relation>`: dA minus the size of dB, and its excess. All
        are null with `not_fluent` if no strength is fluent.
    """
    metric, units = f"d3.robust_{pair.relation}", (pair.target.score_range, pair.neighbour.score_range)
    try:
        if isinstance(texts, CellError):
            raise texts
        pair.target.require_valid()
        pair.neighbour.require_valid()
        grids = grid_pair(texts, pair, rules)
        shifts = Shifts(*grids, units, rules)
    except CellError as error:
        measures, seed = blank_d3(pair.relation, error), None
    else:
        measures, seed = [_index(f"d3.{pair.relation}", shifts, rules)], rules.seed
        measures.append(_robust(metric, shifts.robust(), shifts, rules))
        if null_pairs := _null_pairs(texts, pair, rules):
            measures.append(_robust_excess(f"{metric}.excess", grids, null_pairs, units, rules))
    return [
        measure.with_fields(
            direction=rules.direction, scorer=pair.target.concept, neighbour=pair.neighbour.concept, seed=seed
        )
        for measure in measures
    ]


def blank_d3(relation: str, error: CellError) -> list[Measure]:
    """Return every D3 figure of one relation that needs steered texts, as a null with the given error."""
    names = (f"d3.{relation}", f"d3.robust_{relation}", f"d3.robust_{relation}.excess")
    return [Measure.failed(name, error) for name in names]


def grid_pair(texts: CellTexts, pair: ScorerPair, rules: SteeringRules) -> tuple[ResponseGrid, ResponseGrid]:
    """Return the curves of the steered texts under the scorers of target and neighbour.

    Each curve has the openings that are complete under its scorer.
    """
    target, neighbour = (
        single_grid(texts.steered, texts.unsteered, scorer.concept, rules.seed)
        for scorer in (pair.target, pair.neighbour)
    )
    return target, neighbour


def _null_pairs(texts: CellTexts, pair: ScorerPair, rules: SteeringRules) -> list[tuple[ResponseGrid, ResponseGrid]]:
    """Return the grids of target and neighbour for each null direction.

    If the neighbour has no scores along null directions, return an empty list.
    """
    neighbour = pair.neighbour.concept
    if texts.nulls is None or neighbour not in set(texts.nulls.scores["scorer"].to_pylist()):
        return []
    target_grids = response_grids(texts.nulls, texts.unsteered, pair.target.concept, rules.seed)
    neighbour_grids = response_grids(texts.nulls, texts.unsteered, neighbour, rules.seed)
    return [(target_grids[key], neighbour_grids[key]) for key in target_grids if key in neighbour_grids]


def _index(metric: str, shifts: Shifts, rules: SteeringRules) -> Measure:
    value = float(shifts.target[0])
    low, high = opening_interval(shifts.target[1:], shifts.num_read, level=rules.level) or (0.0, 0.0)
    if high < 0:
        reason = f"steering lowers the target's score: shift {value:.3f}, upper limit {high:.3f}"
        measure = Measure.null(metric, Status.REVERSED, reason)
    elif low <= 0:
        reason = f"the target's shift {value:.3f} has the lower limit {low:.3f}, which is not above 0"
        measure = Measure.null(metric, Status.NO_EFFECT, reason)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            index = np.where(shifts.target > 0, 1 - shifts.neighbour / shifts.target, np.nan)
        interval = opening_interval(index[1:], shifts.num_read, level=rules.level)
        measure = Measure.of(metric, index[0], interval, ci_method=CI_METHOD)
    return measure.with_fields(n=shifts.num_read, num_groups=shifts.num_read, details=shifts.details())


def _robust(
    metric: str, values: np.ndarray, shifts: Shifts, rules: SteeringRules, ci_method: str = CI_METHOD
) -> Measure:
    interval = opening_interval(values[1:], shifts.num_read, level=rules.level)
    measure = Measure.of(metric, values[0], interval, ci_method=ci_method)
    return measure.with_fields(n=shifts.num_read, num_groups=shifts.num_read, details=shifts.details())


def _robust_excess(
    metric: str,
    grids: tuple[ResponseGrid, ResponseGrid],
    null_pairs: list[tuple[ResponseGrid, ResponseGrid]],
    units: tuple[float, float],
    rules: SteeringRules,
) -> Measure:
    """Return dA - |dB| minus its mean over the null directions, at the null strengths on the same openings."""
    flat = align_openings([*grids, *(grid for null_pair in null_pairs for grid in null_pair)])
    cut = [grid.at_strengths(rules.null_strengths) for grid in flat]

    def robust(at: int) -> np.ndarray:
        return Shifts(cut[at], cut[at + 1], units, rules).robust()

    try:
        shifts = Shifts(cut[0], cut[1], units, rules)
    except CellError as error:
        return Measure.failed(metric, error)
    others = [or_zeros(partial(robust, at), rules.num_bootstrap + 1) for at in range(2, len(cut), 2)]
    nulls_NR = np.array(others)
    excess = shifts.robust() - nulls_NR.mean(axis=0)
    spread = with_direction_spread(excess, nulls_NR, shifts.num_read, 1, rules.seed, rules.level)
    measure = _robust(metric, spread, shifts, rules, EXCESS_CI_METHOD)
    details = {**measure.details, "null_mean": float(nulls_NR[:, 0].mean()), "num_nulls": len(others)}
    return measure.with_fields(details=details)


def d3_rep_measure(
    directions: pa.Table, neighbour_directions: pa.Table, relation: str, construction: str = "C1"
) -> Measure:
    """Return the cosine of the directions of a concept and its neighbour, both by the same construction.

    Raise CellError if either direction is null.
    """
    first, second = (direction_vector(table, construction) for table in (directions, neighbour_directions))
    return Measure.of(f"d3.rep_{relation}", float(np.clip(first @ second, -1, 1)))


def published_d3(
    texts: CellTexts | CellError,
    pair: ScorerPair,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
) -> list[Measure]:
    """Return the card's D3, 1 - SCP_B / SCP_A on the texts steered for A, for both definitions of SCP.

    Scorers are used even if they fail their gates. There are no intervals and no null directions.

    Returns:
        `d3.<relation>` twice: with `params.scp` `d2.scp` (as defined in the card) and `d2.scp_1` (the gain at the
        reference strength, as the code of the card computes SCP). If SCP_A is 0, or if the curve of A or B is flat,
        the measure is null with `no_effect`.
    """
    metric, num_openings = f"d3.{pair.relation}", None
    try:
        if isinstance(texts, CellError):
            raise texts
        pair.target.require_trained()
        pair.neighbour.require_trained()
        target, neighbour = align_openings(grid_pair(texts, pair, rules))
        num_openings = len(target.openings)
        scps_of_neighbour = published_values(neighbour, rules)
        ratios = {
            name: _ratio(metric, scp, scps_of_neighbour[name]) for name, scp in published_values(target, rules).items()
        }
    except CellError as error:
        ratios = dict.fromkeys(PUBLISHED_STATISTICS, Measure.failed(metric, error))
    return [
        measure.with_fields(
            direction=rules.direction,
            scorer=pair.target.concept,
            neighbour=pair.neighbour.concept,
            n=num_openings,
            num_groups=num_openings,
            params={"scp": name},
        )
        for name, measure in ratios.items()
    ]


def _ratio(metric: str, target: float, neighbour: float) -> Measure:
    if target == 0 or not np.isfinite([target, neighbour]).all():
        reason = f"SCP of the target is {target:.3g}, of the neighbour {neighbour:.3g}: their ratio says nothing"
        return Measure.null(metric, Status.NO_EFFECT, reason)
    return Measure.of(metric, 1 - neighbour / target, details={"target_scp": target, "neighbour_scp": neighbour})
