"""The steered texts of a cell with their scores and likelihoods, and its directions, or why there are none."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow as pa

from poolbench.contracts.gates import GatedScorer
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import error_of
from poolbench.contracts.wire import NULLS
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench_driver.contract.source import RowSource
from poolbench_driver.loop import Failure, failure_of
from poolbench_driver.pages.boards.cell_table import WORST_STATUSES
from poolbench_driver.suites.poolbench.measures.cosines import direction_vector
from poolbench_driver.suites.poolbench.measures.grids import SteeredTables
from poolbench_driver.suites.poolbench.measures.published import blank_published, published_d2, published_d3
from poolbench_driver.suites.poolbench.measures.rules import SteeringRules
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan, SteeringStages

#: A strategy whose D1 cell has one of these is not used for steering either: its direction is not its own.
UNUSABLE = (*WORST_STATUSES, Status.ONE_CLASS, Status.TOO_FEW, Status.NON_FINITE)

#: Steered, unsteered and null texts of one (concept, strategy).
Tables = tuple[SteeredTables, SteeredTables, SteeredTables]


class SteeredTexts:
    """The results of a plan's steerer and scorers."""

    def __init__(self, plan: PoolBenchPlan, stages: SteeringStages, source: RowSource) -> None:
        self.plan, self.stages, self.source = plan, stages, source

    @cached_property
    def scorers(self) -> dict[str, GatedScorer]:
        """Return the scorers by concept, with the absent ones."""
        absent = {name: GatedScorer(name, Status.NO_SCORER, reason) for name, reason in self.plan.scope.absent.items()}
        return absent | {name: self._scorer(name) for name in self.stages.scorers.concepts}

    @cached_property
    def unsteered(self) -> SteeredTables | Failure:
        """Return the texts at strength 0, shared by all concepts."""
        return self._steered(*self.stages.unsteered.texts, self.stages.scores.unsteered)

    def tables(self, concept: str, strategy: str) -> Tables | Failure:
        """Return steered, unsteered and null texts, or why the first of them is missing."""
        steered, unsteered, nulls = self._usable(concept, strategy), self.unsteered, self._named(concept, NULLS)
        if isinstance(steered, Failure):
            return steered
        if isinstance(unsteered, Failure):
            return unsteered
        return nulls if isinstance(nulls, Failure) else (steered, unsteered, nulls)

    def _usable(self, concept: str, strategy: str) -> SteeredTables | Failure:
        """Return the steered texts of a strategy, or why its figures are null."""
        cell = Cell(strategy, self.plan.scope.steering_layer)
        measures = self.source.table(self.plan.probes.concepts[concept].measures[cell])
        if isinstance(measures, Failure):
            return measures
        d1 = next((row for row in measures.to_pylist() if row["metric"] == "d1.auroc"), None)
        if d1 and d1["status"] in UNUSABLE:
            return failure_of(error_of(d1, f"D1 is {d1['status']}"))
        directions = directions_of(concept, strategy, self.plan, self.source)
        if isinstance(directions, Failure):
            return directions
        try:
            direction_vector(directions, self.plan.scope.config.steering.direction)
        except CellError as error:
            return failure_of(error)
        return self._named(concept, strategy)

    def _named(self, concept: str, name: str) -> SteeredTables | Failure:
        """Return the texts of a strategy, or of the null directions."""
        texts = self.stages.texts.concepts[concept].texts[name]
        return self._steered(*texts, self.stages.scores.concepts[concept][name])

    def _steered(self, texts: str, fluency: str, scores: str) -> SteeredTables | Failure:
        tables = [self.source.table(key) for key in (texts, scores, fluency)]
        failed = next((table for table in tables if isinstance(table, Failure)), None)
        return failed or SteeredTables(*tables)

    def _scorer(self, name: str) -> GatedScorer:
        table = self.source.table(self.stages.scorers.concepts[name].gate)
        if isinstance(table, Failure):
            return GatedScorer(name, Status.NO_SCORER, table.reason)
        return GatedScorer.from_gate(name, table.to_pylist())


def directions_of(concept: str, strategy: str, plan: PoolBenchPlan, source: RowSource) -> pa.Table | Failure:
    """Return DIRECTIONS of a concept for a strategy at the steering layer, or why there are none."""
    if concept in plan.scope.absent:
        return Failure("", "", Status.NO_SCORER, plan.scope.absent[concept])
    cell = Cell(strategy, plan.scope.steering_layer)
    if concept in plan.probes.concepts:
        return source.table(plan.probes.concepts[concept].directions[cell])
    assert plan.steering is not None
    return source.table(plan.steering.neighbour_directions.concepts[concept][cell])


def published(
    tables: Tables | Failure,
    rules: SteeringRules,
    direction: str,
    target: GatedScorer,
    neighbour: GatedScorer | None = None,
    relation: str | None = None,
) -> list[Measure]:
    """Return the published D2 of a concept, or with a neighbour and relation its D3."""
    if isinstance(tables, Failure):
        why: dict[str, Any] = {"scorer": target.concept, "direction": direction, "relation": relation}
        other = neighbour.concept if neighbour else None
        return blank_published(tables.error, **why, neighbour=other)
    steered, unsteered, _ = tables
    how: dict[str, Any] = {"rules": rules, "direction": direction}
    if neighbour is None or relation is None:
        return published_d2(steered, unsteered, scorer=target, **how)
    return published_d3(steered, unsteered, target=target, neighbour=neighbour, relation=relation, **how)
