"""Rows of D2 and D3: reads steered texts, scores and likelihoods, and hands them to the suite's functions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import SCORES, directions_schema, table_from_rows, vector_matrix
from poolbench.directions import DirectionContext, compute_direction
from poolbench.errors import CellError
from poolbench.pooling.registry import StrategySpec
from poolbench.suites import (
    Measure,
    Scorer,
    SteeredTables,
    SteeringRules,
    blank_d2,
    blank_d3,
    curve_rows,
    d2_measures,
    d3_measures,
    d3_rep_measure,
    to_rows,
)
from poolbench_driver.plan import NULLS, ConceptPlan, Plan
from poolbench_driver.rows import Row, Source, missing, with_metric
from poolbench_driver.run import Failure

#: A strategy whose D1 cell has one of these is not steered with either: its direction is not its own.
UNUSABLE = ("collapsed", "no_coverage", "class_dependent_coverage", "one_class", "too_few", "non_finite")


class SteeringRows:
    """Builds the D2 and D3 rows of a plan."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self.plan, self.source = plan, source
        budget = plan.config.budget
        self.rules = SteeringRules(
            reference_strength=budget.reference_strength,
            null_strengths=(0.0, *budget.null_strengths),
            num_bootstrap=budget.num_bootstrap,
            seed=plan.config.seed,
        )

    @cached_property
    def scorers(self) -> dict[str, Scorer]:
        """What is known of each scorer, and of those that cannot be had."""
        absent = {name: Scorer(name, "no_scorer", reason) for name, reason in self.plan.absent.items()}
        return absent | {name: self._scorer(name) for name in self.plan.scorers}

    @cached_property
    def unsteered(self) -> SteeredTables | Failure:
        """The texts at strength 0, shared by all concepts."""
        texts, fluency, scores = self.plan.unsteered
        return self._steered(texts, scores, fluency)

    def rows(self, cells: ConceptPlan) -> list[Row]:
        """All D2 and D3 rows of one concept."""
        rows = []
        for spec in self.plan.strategies:
            identity = self._identity(cells, spec)
            measures = self._d2(cells, spec) if "d2" in self.plan.config.metrics else []
            if "d3" in self.plan.config.metrics:
                measures = measures + self._d3(cells, spec)
            rows += [{**identity, **row} for row in to_rows(measures)]
        return rows

    def curves(self, cells: ConceptPlan) -> list[Row]:
        """The response curves of one concept's usable strategies."""
        rows: list[Row] = []
        scorer = self.scorers[cells.concept.id]
        for spec in self.plan.implemented:
            tables = self._tables(cells, spec)
            if isinstance(tables, Failure):
                continue
            identity = {"concept": cells.concept.id, "strategy": spec.id, "layer": self.plan.steering_layer}
            curve = curve_rows(*tables, scorer=scorer, rules=self.rules)
            rows += [{**identity, **row} for row in curve]
        return rows

    def text_scores(self, cells: ConceptPlan) -> list[Row]:
        """Scores by text; the texts themselves stay in the object store."""
        rows: list[Row] = []
        for name, key in cells.scores.items():
            table = self.source.table(key)
            if not isinstance(table, Failure):
                scores = table.select(SCORES.names).to_pylist()  # no other column may leave the store
                rows += [{"concept": cells.concept.id, "name": name, **row} for row in scores]
        return rows

    def scorer_rows(self) -> list[Row]:
        """Training figures and gate of every scorer."""
        rows = []
        for name, scorer in self.plan.scorers.items():
            for key, metric in ((scorer.training, "scorer.auroc"), (scorer.gate, "scorer.gate")):
                table = self.source.table(key)
                found = (
                    [missing(metric, table.status, table.reason)]
                    if isinstance(table, Failure)
                    else map(with_metric, table.to_pylist())
                )
                rows += [{"concept": name, "scorer": name, **row} for row in found]
        return rows

    def _identity(self, cells: ConceptPlan, spec: StrategySpec) -> Row:
        return {
            "strategy": spec.id,
            "strategy_version": spec.version,
            "concept": cells.concept.id,
            "layer": self.plan.steering_layer,
            "alpha_unit": "residual_norm",
            "opening_set": self.plan.config.budget.opening_set,
        }

    def _scorer(self, name: str) -> Scorer:
        table = self.source.table(self.plan.scorers[name].gate)
        if isinstance(table, Failure):
            return Scorer(name, "no_scorer", table.reason)
        return Scorer.from_gate(name, table.to_pylist())

    def _steered(self, texts: str, scores: str, fluency: str) -> SteeredTables | Failure:
        tables = [self.source.table(key) for key in (texts, scores, fluency)]
        failed = next((table for table in tables if isinstance(table, Failure)), None)
        return failed or SteeredTables(*tables)

    def _nulls(self, cells: ConceptPlan) -> SteeredTables | Failure:
        return self._steered(cells.texts[NULLS], cells.scores[NULLS], cells.fluency[NULLS])

    def _usable(self, cells: ConceptPlan, spec: StrategySpec) -> SteeredTables | Failure:
        """The steered texts of a strategy, or why its figures are null."""
        if not spec.implemented:
            return Failure("", "", "not_implemented", f"{spec.id} is not implemented yet")
        measures = self.source.table(cells.measures[spec.id, self.plan.steering_layer])
        if isinstance(measures, Failure):
            return measures
        d1 = next((row for row in measures.to_pylist() if row["metric"] == "d1.auroc"), None)
        if d1 and d1["status"] in UNUSABLE:
            return Failure("", "", d1["status"], d1["reason"] or f"D1 is {d1['status']}")
        return self._steered(cells.texts[spec.id], cells.scores[spec.id], cells.fluency[spec.id])

    def _tables(
        self, cells: ConceptPlan, spec: StrategySpec
    ) -> tuple[SteeredTables, SteeredTables, SteeredTables] | Failure:
        """Steered, unsteered and null texts, or what is in the way of the first that is missing."""
        steered, unsteered, nulls = self._usable(cells, spec), self.unsteered, self._nulls(cells)
        if isinstance(steered, Failure):
            return steered
        if isinstance(unsteered, Failure):
            return unsteered
        return nulls if isinstance(nulls, Failure) else (steered, unsteered, nulls)

    def _d2(self, cells: ConceptPlan, spec: StrategySpec) -> list[Measure]:
        tables, scorer = self._tables(cells, spec), self.scorers[cells.concept.id]
        if isinstance(tables, Failure):
            return blank_d2(tables.status, tables.reason, scorer=scorer.concept)
        return d2_measures(*tables, scorer=scorer, rules=self.rules)

    def _d3(self, cells: ConceptPlan, spec: StrategySpec) -> list[Measure]:
        tables, target = self._tables(cells, spec), self.scorers[cells.concept.id]
        measures: list[Measure] = []
        for relation, name in RELATIONS.items():
            neighbour = self.scorers[getattr(cells.concept.neighbours, name)]
            if isinstance(tables, Failure):
                fields = {"scorer": target.concept, "neighbour": neighbour.concept}
                measures += blank_d3(relation, tables.status, tables.reason, **fields)
                continue
            measures += d3_measures(*tables, target=target, neighbour=neighbour, relation=relation, rules=self.rules)
            measures.append(self._rep(cells, spec, neighbour.concept, relation))
        return measures

    def _rep(self, cells: ConceptPlan, spec: StrategySpec, neighbour: str, relation: str) -> Any:
        layer = self.plan.steering_layer
        own = self.source.table(cells.directions[spec.id, layer])
        other = self._neighbour_directions(neighbour, spec)
        for table in (own, other):
            if isinstance(table, Failure):
                return Measure.null(f"d3.rep_{relation}", table.status, table.reason, neighbour=neighbour)
        return d3_rep_measure(own, other, neighbour=neighbour, relation=relation)

    def _neighbour_directions(self, neighbour: str, spec: StrategySpec) -> pa.Table | Failure:
        layer = self.plan.steering_layer
        if neighbour in self.plan.absent:
            return Failure("", "", "no_scorer", self.plan.absent[neighbour])
        if neighbour in self.plan.concepts:
            return self.source.table(self.plan.concepts[neighbour].directions[spec.id, layer])
        cells = self.plan.neighbours[neighbour]
        if (spec.id, layer) in cells.directions:
            return self.source.table(cells.directions[spec.id, layer])
        vectors = self.source.table(cells.vectors["train", spec.id, layer])
        if isinstance(vectors, Failure):
            return vectors
        passages = self.source.artifacts.read_table(cells.passages["train"])
        try:
            return _mean_difference(vectors, passages)
        except CellError as error:
            return Failure("", "", error.status, str(error))


def _mean_difference(vectors: pa.Table, passages: pa.Table) -> pa.Table:
    """DIRECTIONS with C1 of a concept that is a neighbour only, so that the prober has no cell of it."""
    matrix = vector_matrix(vectors["vector"]).astype(np.float64)
    finite = np.isfinite(matrix).all(axis=1)
    labels = passages["label"].to_numpy()[finite]
    context = DirectionContext(matrix[finite], labels, np.empty((0, 2), dtype=np.int64))
    direction = compute_direction("C1", context)
    row = {"direction_id": "C1", "vector": direction.vector, "raw_norm": direction.raw_norm, "status": "ok"}
    return table_from_rows([row], directions_schema(matrix.shape[1]))


#: Metric suffix of D3 by the neighbour's relation in the concept registry.
RELATIONS = {"ld": "linguistically_distant", "lc": "linguistically_close"}
