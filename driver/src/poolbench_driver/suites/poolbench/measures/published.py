"""Protocol `published`: D2 and D3 as the card defines them, to compare with its tables. They are never ranked.

Scorers are used whatever their gate says. There are no intervals and no null directions.
"""

from typing import Any

import numpy as np

from poolbench.contracts.gates import GatedScorer
from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_driver.suites.poolbench.measures.disentangle import grid_pair
from poolbench_driver.suites.poolbench.measures.grids import ResponseGrid, SteeredTables, single_grid
from poolbench_driver.suites.poolbench.measures.response import CurveStatistic, scp, scp_1
from poolbench_driver.suites.poolbench.measures.rules import SteeringRules

#: What the ratio of D3 is taken of: the card defines SCP as the correlation; its code divides gains at one strength.
SCPS: dict[str, CurveStatistic] = {"d2.scp": scp, "d2.scp_1": scp_1}


def published_d2(
    steered: SteeredTables,
    unsteered: SteeredTables,
    *,
    scorer: GatedScorer,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
    direction_key: str | None = None,
    direction: str = "C1",
) -> list[Measure]:
    """Return `d2.scp` and `d2.scp_1` of one (concept, strategy), without gate and interval."""
    fields: dict[str, Any] = {"direction": direction, "scorer": scorer.concept}
    try:
        scorer.require_trained()
        grid = single_grid(steered, unsteered, scorer.concept, direction_key)
    except CellError as error:
        return [Measure.failed(metric, error, **fields) for metric in SCPS]
    fields |= {"n": len(grid.openings), "num_groups": len(grid.openings)}
    values = {metric: _value(statistic, grid, rules) for metric, statistic in SCPS.items()}
    return [
        Measure.of(metric, value, **fields) if np.isfinite(value) else _flat(metric, scorer, fields)
        for metric, value in values.items()
    ]


def published_d3(
    steered: SteeredTables,
    unsteered: SteeredTables,
    *,
    target: GatedScorer,
    neighbour: GatedScorer,
    relation: str,
    rules: SteeringRules = SteeringRules(),  # noqa: B008 (frozen)
    direction_key: str | None = None,
    direction: str = "C1",
) -> list[Measure]:
    """Return 1 - SCP_B / SCP_A on the texts steered for A: the card's D3, for either definition of SCP.

    Returns:
        `d3.<relation>` with `params.scp` `d2.scp` (the card's) and `d2.scp_1` (gain at the reference strength, as its
        code computes it); `no_effect` if SCP_A is 0 or the curve of A or B is flat.
    """
    metric = f"d3.{relation}"
    fields: dict[str, Any] = {"direction": direction, "scorer": target.concept, "neighbour": neighbour.concept}
    try:
        target.require_trained()
        neighbour.require_trained()
        target_grid, neighbour_grid = grid_pair(steered, unsteered, target, neighbour, direction_key)
    except CellError as error:
        return [Measure.failed(metric, error, **fields, params={"scp": name}) for name in SCPS]
    fields |= {"n": len(target_grid.openings), "num_groups": len(target_grid.openings)}
    return [
        _ratio(
            metric,
            _value(statistic, target_grid, rules),
            _value(statistic, neighbour_grid, rules),
            {**fields, "params": {"scp": n}},
        )
        for n, statistic in SCPS.items()
    ]


def _value(statistic: CurveStatistic, grid: ResponseGrid, rules: SteeringRules) -> float:
    return float(statistic(grid, np.ones((1, len(grid.openings))), rules)[0])


def _ratio(metric: str, target: float, neighbour: float, fields: dict[str, Any]) -> Measure:
    if target == 0 or not np.isfinite([target, neighbour]).all():
        reason = f"SCP of the target is {target:.3g}, of the neighbour {neighbour:.3g}: their ratio says nothing"
        return Measure.null(metric, Status.NO_EFFECT, reason, **fields)
    details = {"target_scp": target, "neighbour_scp": neighbour}
    return Measure.of(metric, 1 - neighbour / target, **fields, details=details)


def _flat(metric: str, scorer: GatedScorer, fields: dict[str, Any]) -> Measure:
    reason = f"the mean score of {scorer.concept} is the same at every strength"
    return Measure.null(metric, Status.NO_EFFECT, reason, **fields)


def blank_published(
    error: CellError, *, scorer: str, direction: str = "C1", neighbour: str | None = None, relation: str | None = None
) -> list[Measure]:
    """Return the published rows of D2, or with a `relation` of D3, as nulls."""
    fields: dict[str, Any] = {"scorer": scorer, "direction": direction, "neighbour": neighbour}
    if relation is None:
        return [Measure.failed(metric, error, **fields) for metric in SCPS]
    return [Measure.failed(f"d3.{relation}", error, **fields, params={"scp": name}) for name in SCPS]
