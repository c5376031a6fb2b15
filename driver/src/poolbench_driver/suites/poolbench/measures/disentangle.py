"""D3: does steering move its own concept and leave the neighbour alone?"""

from functools import partial
from typing import Any

import numpy as np

from poolbench.contracts.gates import GatedScorer
from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.resampling import bootstrap_counts
from poolbench.statuses import Status
from poolbench_driver.suites.poolbench.measures.grids import (
    ResponseGrid,
    SteeredTables,
    align_openings,
    response_grids,
    single_grid,
)
from poolbench_driver.suites.poolbench.measures.intervals import opening_interval, with_direction_spread
from poolbench_driver.suites.poolbench.measures.response import best_column, gain_at, halves
from poolbench_driver.suites.poolbench.measures.rules import SteeringRules
from poolbench_driver.suites.poolbench.measures.steering import or_zeros

CI_METHOD = "paired bootstrap over openings, expanded percentile, at the chosen strength"
EXCESS_CI_METHOD = f"{CI_METHOD}, with the spread of null directions"
RELATIONS = ("ld", "lc")


class Shifts:
    """Shifts of target and neighbour at the target's best strength.

    The strength is chosen on one half of the openings, the shifts are read on the other (`num_read` openings). Entry 0
    of a shift is the value, the rest are resamples [1 + R]. Raise CellError `not_fluent` as `best_column` does.
    """

    def __init__(
        self, target: ResponseGrid, neighbour: ResponseGrid, units: tuple[float, float], rules: SteeringRules
    ) -> None:
        choose, read = halves(len(target.openings), rules.seed)
        column = best_column(target.at_openings(choose), rules)
        weights = np.vstack([np.ones((1, len(read))), bootstrap_counts(len(read), rules.num_bootstrap, rules.seed)])
        self.strength = float(target.strengths[column])
        self.num_read = len(read)
        self.target = gain_at(target.at_openings(read), column, weights) / units[0]
        self.neighbour = gain_at(neighbour.at_openings(read), column, weights) / units[1]

    def robust(self) -> np.ndarray:
        """Return dA - |dB|."""
        return self.target - np.abs(self.neighbour)

    def details(self) -> dict[str, float]:
        """Return the chosen strength and the two shifts."""
        return {
            "strength": self.strength,
            "target_shift": float(self.target[0]),
            "neighbour_shift": float(self.neighbour[0]),
        }


def d3_measures(
    steered: SteeredTables,
    unsteered: SteeredTables,
    nulls: SteeredTables | None,
    *,
    target: GatedScorer,
    neighbour: GatedScorer,
    relation: str,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
    direction_key: str | None = None,
    direction: str = "C1",
) -> list[Measure]:
    """Return D3 of one (concept, strategy) against one neighbour: the index, and the robust difference.

    A shift dX is the gain of X's scorer at the target's best strength, in units of that scorer's range on
    held-out passages. The strength is chosen on one half of the openings, the shifts are read on the other.

    Args:
        steered: Texts along the strategy's direction, with SCORES of target and neighbour.
        unsteered: Texts of the same openings at strength 0, with both scorers' SCORES.
        nulls: Null directions' texts with both scorers' SCORES, for `d3.robust_*.excess`; may be None.
        target: The steered concept's scorer.
        neighbour: The neighbour's scorer.
        relation: `ld` (linguistically distant) or `lc` (linguistically close).
        rules: Settings.
        direction_key: Which direction of `steered`; not needed if there is only one.
        direction: Construction method, for the rows.

    Returns:
        `d3.<relation>`: 1 - dB / dA if the lower limit of dA is above 0, else null with `no_effect`, or with
        `reversed` if the upper limit is below 0. `d3.robust_<relation>`: dA minus the size of dB, and its excess. All
        are null with `not_fluent` if no strength is fluent.
    """
    assert relation in RELATIONS, relation
    fields: dict[str, Any] = {"direction": direction, "scorer": target.concept, "neighbour": neighbour.concept}
    try:
        target.require_valid()
        neighbour.require_valid()
        pair = grid_pair(steered, unsteered, target, neighbour, direction_key)
        units = (target.score_range, neighbour.score_range)
        shifts = Shifts(pair[0], pair[1], units, rules)
    except CellError as error:
        return blank_d3(relation, error, **fields)
    fields |= {"seed": rules.seed, "ci_method": CI_METHOD}
    metric = f"d3.robust_{relation}"
    index = _index(f"d3.{relation}", shifts, rules, fields)
    measures = [index, _interval(metric, shifts.robust(), shifts, rules, fields)]
    null_pairs = _null_pairs(nulls, unsteered, target, neighbour)
    if null_pairs:
        measures.append(_robust_excess(f"{metric}.excess", pair, null_pairs, units, rules, fields))
    return measures


def blank_d3(relation: str, error: CellError, **fields: Any) -> list[Measure]:
    """Return every steered D3 figure of one relation as a null; `fields` name the scorers."""
    names = (f"d3.{relation}", f"d3.robust_{relation}", f"d3.robust_{relation}.excess")
    return [Measure.failed(name, error, **fields) for name in names]


def grid_pair(
    steered: SteeredTables,
    unsteered: SteeredTables,
    target: GatedScorer,
    neighbour: GatedScorer,
    direction_key: str | None,
) -> list[ResponseGrid]:
    """Return the curves of the same texts under both scorers, on the openings that are complete under both."""
    scorers = (target.concept, neighbour.concept)
    return align_openings([single_grid(steered, unsteered, scorer, direction_key) for scorer in scorers])


def _null_pairs(
    nulls: SteeredTables | None, unsteered: SteeredTables, target: GatedScorer, neighbour: GatedScorer
) -> list[list[ResponseGrid]]:
    """Return the grids of target and neighbour for each null direction; none if the neighbour has no scores."""
    if nulls is None or neighbour.concept not in set(nulls.scores["scorer"].to_pylist()):
        return []
    target_grids = response_grids(nulls, unsteered, target.concept)
    neighbour_grids = response_grids(nulls, unsteered, neighbour.concept)
    return [[target_grids[key], neighbour_grids[key]] for key in target_grids if key in neighbour_grids]


def _index(metric: str, shifts: Shifts, rules: SteeringRules, fields: dict[str, Any]) -> Measure:
    value = float(shifts.target[0])
    low, high = opening_interval(shifts.target[1:], shifts.num_read, level=rules.level) or (0.0, 0.0)
    fields = {**fields, "n": shifts.num_read, "num_groups": shifts.num_read, "details": shifts.details()}
    if high < 0:
        reason = f"steering lowers the target's score: shift {value:.3f}, upper limit {high:.3f}"
        return Measure.null(metric, Status.REVERSED, reason, **fields)
    if low <= 0:
        reason = f"the target's shift {value:.3f} has the lower limit {low:.3f}, which is not above 0"
        return Measure.null(metric, Status.NO_EFFECT, reason, **fields)
    with np.errstate(divide="ignore", invalid="ignore"):
        index = np.where(shifts.target > 0, 1 - shifts.neighbour / shifts.target, np.nan)
    return Measure.of(metric, index[0], opening_interval(index[1:], shifts.num_read, level=rules.level), **fields)


def _interval(
    metric: str, values: np.ndarray, shifts: Shifts, rules: SteeringRules, fields: dict[str, Any], **details: Any
) -> Measure:
    details = {**shifts.details(), **details}
    fields = {**fields, "n": shifts.num_read, "num_groups": shifts.num_read, "details": details}
    return Measure.of(metric, values[0], opening_interval(values[1:], shifts.num_read, level=rules.level), **fields)


def _robust_excess(
    metric: str,
    pair: list[ResponseGrid],
    null_pairs: list[list[ResponseGrid]],
    units: tuple[float, float],
    rules: SteeringRules,
    fields: dict[str, Any],
) -> Measure:
    """Return dA - |dB| minus its mean over the null directions, at the null strengths on the same openings."""
    flat = align_openings([*pair, *(grid for null_pair in null_pairs for grid in null_pair)])
    cut = [grid.at_strengths(rules.null_strengths) for grid in flat]

    def robust(at: int) -> np.ndarray:
        return Shifts(cut[at], cut[at + 1], units, rules).robust()

    try:
        shifts = Shifts(cut[0], cut[1], units, rules)
    except CellError as error:
        return Measure.failed(metric, error, **fields)
    others = [or_zeros(partial(robust, at), rules.num_bootstrap + 1) for at in range(2, len(cut), 2)]
    nulls_NR = np.array(others)
    excess = shifts.robust() - nulls_NR.mean(axis=0)
    spread = with_direction_spread(excess, nulls_NR, shifts.num_read, 1, rules.seed, rules.level)
    details = {"null_mean": float(nulls_NR[:, 0].mean()), "num_nulls": len(others)}
    return _interval(metric, spread, shifts, rules, {**fields, "ci_method": EXCESS_CI_METHOD}, **details)
