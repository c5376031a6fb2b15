"""Rows of D2 and D3: reads steered texts, scores and likelihoods, and hands them to the suite's functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from poolbench.contracts.tables import SCORES
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
from poolbench_driver.direction_tables import directions_of, neighbour_directions, unusable_direction
from poolbench_driver.plan import NULLS, UNSTEERED, ConceptPlan, Plan
from poolbench_driver.published_rows import Tables, published
from poolbench_driver.rows import Row, Source, missing, with_metric
from poolbench_driver.run import Failure

#: A strategy whose D1 cell has one of these is not steered with either: its direction is not its own.
UNUSABLE = ("collapsed", "no_coverage", "class_dependent_coverage", "one_class", "too_few", "non_finite")


class SteeringRows:
    """Builds the D2 and D3 rows of a plan."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self.plan, self.source = plan, source
        budget, self.direction = plan.config.budget, plan.config.steering.direction
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
        rows: list[Row] = []
        for spec in self.plan.strategies:
            identity, tables = self._identity(cells, spec), self._tables(cells, spec)
            rows += [{**identity, **row} for row in self._settled(self._corrected(cells, spec, tables))]
        return rows

    def published_rows(self, cells: ConceptPlan) -> list[Row]:
        """D2 and D3 of one concept by the card's own definitions."""
        rows: list[Row] = []
        for spec in self.plan.strategies:
            identity, measures = self._identity(cells, spec), self._published(cells, self._tables(cells, spec))
            rows += [{**identity, **row} for row in self._settled(measures)]
        return rows

    def _settled(self, measures: Iterable[Measure]) -> list[Row]:
        """Rows that say how texts were made, where not by default."""
        settings = self.plan.config.steering.changed()
        return to_rows(measure.with_fields(params={**settings, **measure.params}) for measure in measures)

    def curves(self, cells: ConceptPlan) -> list[Row]:
        """The response curves of one concept's usable strategies."""
        rows: list[Row] = []
        scorer = self.scorers[cells.concept.id]
        for spec in self.plan.implemented:
            tables = self._tables(cells, spec)
            if isinstance(tables, Failure):
                continue
            identity = {"concept": cells.concept.id, "strategy": spec.id, "layer": self.plan.steering_layer}
            identity["alpha_unit"] = self.plan.config.budget.alpha_unit
            curve = curve_rows(*tables, scorer=scorer, rules=self.rules, direction=self.direction)
            rows += [{**identity, **row} for row in curve]
        return rows

    def text_scores(self, cells: ConceptPlan) -> list[Row]:
        """Scores by text; the texts themselves stay in the object store."""
        keys = cells.scores.items()
        return [row for name, key in keys for row in self._scores({"concept": cells.concept.id, "name": name}, key)]

    def unsteered_scores(self) -> list[Row]:
        """Scores of the unsteered texts by every scorer; they belong to no concept."""
        return self._scores({"concept": None, "name": UNSTEERED}, self.plan.unsteered[2])

    def _scores(self, identity: Row, key: str) -> list[Row]:
        table = self.source.table(key)
        if isinstance(table, Failure):
            return []
        scores = table.select(SCORES.names).to_pylist()  # no other column may leave the store
        return [{**identity, **row} for row in scores]

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
            "alpha_unit": self.plan.config.budget.alpha_unit,
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
        unusable = unusable_direction(directions_of(cells, spec, self.plan, self.source), self.direction)
        if unusable is not None:
            return unusable
        return self._steered(cells.texts[spec.id], cells.scores[spec.id], cells.fluency[spec.id])

    def _tables(self, cells: ConceptPlan, spec: StrategySpec) -> Tables | Failure:
        """Steered, unsteered and null texts, or what is in the way of the first that is missing."""
        steered, unsteered, nulls = self._usable(cells, spec), self.unsteered, self._nulls(cells)
        if isinstance(steered, Failure):
            return steered
        if isinstance(unsteered, Failure):
            return unsteered
        return nulls if isinstance(nulls, Failure) else (steered, unsteered, nulls)

    def _corrected(self, cells: ConceptPlan, spec: StrategySpec, tables: Tables | Failure) -> list[Measure]:
        measures: list[Measure] = []
        if "d2" in self.plan.config.metrics:
            measures += self._d2(cells, tables)
        if "d3" in self.plan.config.metrics:
            measures += self._d3(cells, spec, tables)
        return measures

    def _d2(self, cells: ConceptPlan, tables: Tables | Failure) -> list[Measure]:
        scorer = self.scorers[cells.concept.id]
        if isinstance(tables, Failure):
            return blank_d2(tables.status, tables.reason, scorer=scorer.concept, direction=self.direction)
        return d2_measures(*tables, scorer=scorer, rules=self.rules, direction=self.direction)

    def _neighbours(self, cells: ConceptPlan) -> Iterator[tuple[str, Scorer]]:
        for relation, name in RELATIONS.items():
            yield relation, self.scorers[getattr(cells.concept.neighbours, name)]

    def _d3(self, cells: ConceptPlan, spec: StrategySpec, tables: Tables | Failure) -> list[Measure]:
        target = self.scorers[cells.concept.id]
        measures: list[Measure] = []
        for relation, neighbour in self._neighbours(cells):
            if isinstance(tables, Failure):
                fields = {"scorer": target.concept, "neighbour": neighbour.concept, "direction": self.direction}
                measures += blank_d3(relation, tables.status, tables.reason, **fields)
                if spec.implemented:  # the directions do not need the texts
                    measures.append(self._rep(cells, spec, neighbour.concept, relation))
                continue
            pair: dict[str, Any] = {"target": target, "neighbour": neighbour, "relation": relation}
            measures += d3_measures(*tables, **pair, rules=self.rules, direction=self.direction)
            measures.append(self._rep(cells, spec, neighbour.concept, relation))
        return measures

    def _published(self, cells: ConceptPlan, tables: Tables | Failure) -> list[Measure]:
        """The same texts by the card's definitions."""
        own, measures = self.scorers[cells.concept.id], []
        if "d2" in self.plan.config.metrics:
            measures += published(tables, self.rules, self.direction, own)
        if "d3" in self.plan.config.metrics:
            for relation, other in self._neighbours(cells):
                measures += published(tables, self.rules, self.direction, own, other, relation)
        return measures

    def _rep(self, cells: ConceptPlan, spec: StrategySpec, neighbour: str, relation: str) -> Measure:
        own = directions_of(cells, spec, self.plan, self.source)
        other = neighbour_directions(neighbour, spec, self.plan, self.source)
        for table in (own, other):
            if isinstance(table, Failure):
                fields = {"neighbour": neighbour, "direction": self.direction}
                return Measure.null(f"d3.rep_{relation}", table.status, table.reason, **fields)
        return d3_rep_measure(own, other, neighbour=neighbour, relation=relation, direction=self.direction)


#: Metric suffix of D3 by the neighbour's relation in the concept registry.
RELATIONS = {"ld": "linguistically_distant", "lc": "linguistically_close"}
