"""Rows of D2 and D3: reads steered texts, scores and likelihoods, and hands them to the suite's functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from poolbench.contracts.tables import SCORES
from poolbench.pooling.registry import StrategySpec
from poolbench.suites import (
    Measure,
    Scorer,
    SteeringRules,
    blank_d2,
    blank_d3,
    curve_rows,
    d2_measures,
    d3_measures,
    d3_rep_measure,
    to_rows,
)
from poolbench_driver.assemble.direction_tables import directions_of, neighbour_directions
from poolbench_driver.assemble.published_rows import published
from poolbench_driver.assemble.rows import Row, Source, missing, strategy_columns, with_metric
from poolbench_driver.assemble.steered import SteeredTexts, Tables
from poolbench_driver.plan import UNSTEERED, ConceptPlan, Plan
from poolbench_driver.run import Failure

#: Metric suffix of D3 by the neighbour's relation in the concept registry.
RELATIONS = {"ld": "linguistically_distant", "lc": "linguistically_close"}

#: What is told of each text beside its scores.
ORIGIN = ("text_id", "prompt_id", "direction_key", "strength", "num_tokens", "repeated_4grams", "sample")


class SteeringRows:
    """Builds the D2 and D3 rows of a plan."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self.plan, self.source, self.texts = plan, source, SteeredTexts(plan, source)
        budget, self.direction = plan.config.budget, plan.config.steering.direction
        self.rules = SteeringRules(
            reference_strength=budget.reference_strength,
            null_strengths=(0.0, *budget.null_strengths),
            num_bootstrap=budget.num_bootstrap,
            seed=plan.config.seed,
        )

    def rows(self, cells: ConceptPlan) -> list[Row]:
        """All D2 and D3 rows of one concept."""
        rows: list[Row] = []
        for spec in self.plan.strategies:
            identity, tables = self._identity(cells, spec), self.texts.tables(cells, spec)
            rows += [{**identity, **row} for row in self._settled(self._corrected(cells, spec, tables))]
        return rows

    def published_rows(self, cells: ConceptPlan) -> list[Row]:
        """D2 and D3 of one concept by the card's own definitions."""
        rows: list[Row] = []
        for spec in self.plan.strategies:
            identity, measures = self._identity(cells, spec), self._published(cells, self.texts.tables(cells, spec))
            rows += [{**identity, **row} for row in self._settled(measures)]
        return rows

    def _settled(self, measures: Iterable[Measure]) -> list[Row]:
        """Rows that say how texts were made, where not by default."""
        settings = self.plan.config.steering.changed()
        return to_rows(measure.with_fields(params={**settings, **measure.params}) for measure in measures)

    def curves(self, cells: ConceptPlan) -> list[Row]:
        """The response curves of one concept's usable strategies."""
        rows: list[Row] = []
        scorer = self.texts.scorers[cells.concept.id]
        for spec in self.plan.implemented:
            tables = self.texts.tables(cells, spec)
            if isinstance(tables, Failure):
                continue
            identity = {"concept": cells.concept.id, "strategy": spec.id, "layer": self.plan.steering_layer}
            identity["alpha_unit"] = self.plan.config.budget.alpha_unit
            curve = curve_rows(*tables, scorer=scorer, rules=self.rules, direction=self.direction)
            rows += [{**identity, **row} for row in curve]
        return rows

    def text_scores(self, cells: ConceptPlan) -> list[Row]:
        """Scores by text, with what D2 and D3 are made from; the texts themselves stay in the object store."""
        rows: list[Row] = []
        for name, scores in cells.scores.items():
            identity = {"concept": cells.concept.id, "name": name}
            rows += self._scores(identity, cells.texts[name], cells.fluency[name], scores)
        return rows

    def unsteered_scores(self) -> list[Row]:
        """Scores of the unsteered texts by every scorer; they belong to no concept."""
        return self._scores({"concept": None, "name": UNSTEERED}, *self.plan.unsteered)

    def _scores(self, identity: Row, texts_key: str, fluency_key: str, scores_key: str) -> list[Row]:
        scores = self.source.table(scores_key)
        if isinstance(scores, Failure):
            return []
        origins = self._origins(texts_key, fluency_key)
        told = scores.select(SCORES.names).to_pylist()  # no other column may leave the store
        return [{**identity, **row, **origins.get(row["text_id"], {})} for row in told]

    def _origins(self, texts_key: str, fluency_key: str) -> dict[str, Row]:
        """How each text was made and how it reads, in numbers alone, by its id."""
        texts, fluency = self.source.table(texts_key), self.source.table(fluency_key)
        if isinstance(texts, Failure):
            return {}
        rows = texts.select([name for name in ORIGIN if name in texts.schema.names]).to_pylist()
        numbers: dict[str, int] = {}
        for row in rows:  # the key of a sensitive concept's direction is not told, and a number says as much
            row["direction"] = numbers.setdefault(row.pop("direction_key"), len(numbers))
        found = {row.pop("text_id"): row for row in rows}
        if not isinstance(fluency, Failure):
            for row in fluency.select(["text_id", "mean_nll"]).to_pylist():
                found[row["text_id"]]["mean_nll"] = row["mean_nll"]
        return found

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
            **strategy_columns(spec),
            "concept": cells.concept.id,
            "layer": self.plan.steering_layer,
            "alpha_unit": self.plan.config.budget.alpha_unit,
            "opening_set": self.plan.config.budget.opening_set,
        }

    def _corrected(self, cells: ConceptPlan, spec: StrategySpec, tables: Tables | Failure) -> list[Measure]:
        measures: list[Measure] = []
        if "d2" in self.plan.config.metrics:
            measures += self._d2(cells, tables)
        if "d3" in self.plan.config.metrics:
            measures += self._d3(cells, spec, tables)
        return measures

    def _d2(self, cells: ConceptPlan, tables: Tables | Failure) -> list[Measure]:
        scorer = self.texts.scorers[cells.concept.id]
        if isinstance(tables, Failure):
            return blank_d2(tables.status, tables.reason, scorer=scorer.concept, direction=self.direction)
        return d2_measures(*tables, scorer=scorer, rules=self.rules, direction=self.direction)

    def _neighbours(self, cells: ConceptPlan) -> Iterator[tuple[str, Scorer]]:
        for relation, name in RELATIONS.items():
            yield relation, self.texts.scorers[getattr(cells.concept.neighbours, name)]

    def _d3(self, cells: ConceptPlan, spec: StrategySpec, tables: Tables | Failure) -> list[Measure]:
        target = self.texts.scorers[cells.concept.id]
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
        own, measures = self.texts.scorers[cells.concept.id], []
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
