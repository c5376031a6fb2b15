"""Rows of D2 and D3: steered texts, scores and likelihoods go through the suite's functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poolbench.concepts import Concept
from poolbench.contracts import Row
from poolbench.contracts.gates import GatedScorer
from poolbench.contracts.measures import Measure, to_rows
from poolbench.contracts.tables import SCORES
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError
from poolbench.pooling.registry import StrategySpec
from poolbench.statuses import Status
from poolbench_driver.contract.source import RowSource, missing, strategy_columns
from poolbench_driver.loop import Failure
from poolbench_driver.stages.steering import Texts
from poolbench_driver.suites.poolbench.measures.cosines import d3_rep_measure
from poolbench_driver.suites.poolbench.measures.curves import curve_rows
from poolbench_driver.suites.poolbench.measures.disentangle import blank_d3, d3_measures
from poolbench_driver.suites.poolbench.measures.rules import SteeringRules
from poolbench_driver.suites.poolbench.measures.steering import blank_d2, d2_measures
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan, SteeringStages
from poolbench_driver.suites.poolbench.rows.steered import SteeredTexts, Tables, directions_of, published

#: Metric suffix of D3 by the neighbour's relation in the concept registry.
RELATIONS = {"ld": "linguistically_distant", "lc": "linguistically_close"}

#: Columns of each text beside its scores.
ORIGIN = ("text_id", "prompt_id", "direction_key", "strength", "num_tokens", "repeated_4grams", "sample")


class SteeringRows:
    """Builds the D2 and D3 rows of a plan."""

    def __init__(self, plan: PoolBenchPlan, stages: SteeringStages, source: RowSource) -> None:
        self.plan, self.scope, self.stages = plan, plan.scope, stages
        self.source, self.texts = source, SteeredTexts(plan, stages, source)
        budget, self.direction = self.scope.config.budget, self.scope.config.steering.direction
        self.rules = SteeringRules(
            reference_strength=budget.reference_strength,
            null_strengths=(0.0, *budget.null_strengths),
            num_bootstrap=budget.num_bootstrap,
            seed=self.scope.config.seed,
        )

    def rows(self, concept: Concept, *, published: bool = False) -> list[Row]:
        """Return all D2 and D3 rows of one concept, or those by the card's own definitions.

        `params` has the generation settings that differ from the defaults.
        """
        rows: list[Row] = []
        settings = self.scope.config.steering.changed()
        for spec in self.scope.strategies:
            identity, tables = self._identity(concept, spec), self.texts.tables(concept.id, spec.id)
            measures = self._published(concept, tables) if published else self._corrected(concept, spec, tables)
            settled = (measure.with_fields(params={**settings, **measure.params}) for measure in measures)
            rows += [{**identity, **row} for row in to_rows(settled)]
        return rows

    def curves(self, concept: Concept) -> list[Row]:
        """Return the response curves of one concept's usable strategies."""
        rows: list[Row] = []
        scorer = self.texts.scorers[concept.id]
        for spec in self.scope.strategies:
            tables = self.texts.tables(concept.id, spec.id)
            if isinstance(tables, Failure):
                continue
            identity = {"concept": concept.id, "strategy": spec.id, "layer": self.scope.steering_layer}
            identity["alpha_unit"] = self.scope.config.budget.alpha_unit
            curve = curve_rows(*tables, scorer=scorer, rules=self.rules, direction=self.direction)
            rows += [{**identity, **row} for row in curve]
        return rows

    def text_scores(self, concept: Concept) -> list[Row]:
        """Return scores by text, with what D2 and D3 are made from; the texts themselves stay in the object store."""
        rows: list[Row] = []
        texts = self.stages.texts.concepts[concept.id].texts
        for name, scores in self.stages.scores.concepts[concept.id].items():
            rows += self._scores({"concept": concept.id, "name": name}, texts[name], scores)
        return rows

    def unsteered_scores(self) -> list[Row]:
        """Return scores of the unsteered texts by every scorer; they belong to no concept."""
        identity = {"concept": None, "name": UNSTEERED}
        return self._scores(identity, self.stages.unsteered.texts, self.stages.scores.unsteered)

    def _scores(self, identity: Row, keys: Texts, scores_key: str) -> list[Row]:
        scores = self.source.table(scores_key)
        if isinstance(scores, Failure):
            return []
        origins = self._origins(keys)
        public = scores.select(SCORES.names).to_pylist()  # no other column may leave the store
        return [{**identity, **row, **origins.get(row["text_id"], {})} for row in public]

    def _origins(self, keys: Texts) -> dict[str, Row]:
        """Return how each text was made, in numbers alone, by its id."""
        texts, fluency = self.source.table(keys.texts), self.source.table(keys.fluency)
        if isinstance(texts, Failure):
            return {}
        rows = texts.select([name for name in ORIGIN if name in texts.schema.names]).to_pylist()
        numbers: dict[str, int] = {}
        for row in rows:  # a number replaces the direction's key, which names the concept
            row["direction"] = numbers.setdefault(row.pop("direction_key"), len(numbers))
        origins = {row.pop("text_id"): row for row in rows}
        if not isinstance(fluency, Failure):
            for row in fluency.select(["text_id", "mean_nll"]).to_pylist():
                origins[row["text_id"]]["mean_nll"] = row["mean_nll"]
        return origins

    def scorer_rows(self) -> list[Row]:
        """Return training figures and gate of every scorer."""
        rows = []
        for name, scorer in self.stages.scorers.concepts.items():
            for key, metric in ((scorer.training, "scorer.auroc"), (scorer.gate, "scorer.gate")):
                table = self.source.table(key)
                measures = [missing(metric, table)] if isinstance(table, Failure) else table.to_pylist()
                rows += [{"concept": name, "scorer": name, **row} for row in measures]
        return rows

    def _identity(self, concept: Concept, spec: StrategySpec) -> Row:
        return {
            **strategy_columns(spec),
            "concept": concept.id,
            "layer": self.scope.steering_layer,
            "alpha_unit": self.scope.config.budget.alpha_unit,
            "opening_set": self.scope.config.budget.opening_set,
        }

    def _corrected(self, concept: Concept, spec: StrategySpec, tables: Tables | Failure) -> list[Measure]:
        measures: list[Measure] = []
        if "d2" in self.scope.config.metrics:
            measures += self._d2(concept, tables)
        if "d3" in self.scope.config.metrics:
            measures += self._d3(concept, spec, tables)
        return measures

    def _d2(self, concept: Concept, tables: Tables | Failure) -> list[Measure]:
        scorer = self.texts.scorers[concept.id]
        if isinstance(tables, Failure):
            return blank_d2(tables.error, scorer=scorer.concept, direction=self.direction)
        return d2_measures(*tables, scorer=scorer, rules=self.rules, direction=self.direction)

    def _neighbours(self, concept: Concept) -> Iterator[tuple[str, GatedScorer]]:
        for relation, name in RELATIONS.items():
            if (neighbour := getattr(concept.neighbours, name)) is not None:
                yield relation, self.texts.scorers[neighbour]

    def _without_neighbour(self, concept: Concept) -> list[Measure]:
        """Return the null D3 measures of relations that the concept names no neighbour for."""
        measures: list[Measure] = []
        for relation, name in RELATIONS.items():
            if getattr(concept.neighbours, name) is None:
                reason = f"concept {concept.id} names no {name.replace('_', ' ')} neighbour"
                error, fields = CellError(Status.NO_SCORER, reason), {"scorer": concept.id, "direction": self.direction}
                measures += blank_d3(relation, error, **fields)
                measures.append(Measure.failed(f"d3.rep_{relation}", error, direction=self.direction))
        return measures

    def _d3(self, concept: Concept, spec: StrategySpec, tables: Tables | Failure) -> list[Measure]:
        target = self.texts.scorers[concept.id]
        measures = self._without_neighbour(concept)
        for relation, neighbour in self._neighbours(concept):
            if isinstance(tables, Failure):
                fields = {"scorer": target.concept, "neighbour": neighbour.concept, "direction": self.direction}
                measures += blank_d3(relation, tables.error, **fields)
            else:
                pair: dict[str, Any] = {"target": target, "neighbour": neighbour, "relation": relation}
                measures += d3_measures(*tables, **pair, rules=self.rules, direction=self.direction)
            measures.append(self._rep(concept, spec, neighbour.concept, relation))  # needs no texts
        return measures

    def _published(self, concept: Concept, tables: Tables | Failure) -> list[Measure]:
        """Return measures of the same texts by the card's definitions."""
        scorer, measures = self.texts.scorers[concept.id], []
        if "d2" in self.scope.config.metrics:
            measures += published(tables, self.rules, self.direction, scorer)
        if "d3" in self.scope.config.metrics:
            for relation, other in self._neighbours(concept):
                measures += published(tables, self.rules, self.direction, scorer, other, relation)
        return measures

    def _rep(self, concept: Concept, spec: StrategySpec, neighbour: str, relation: str) -> Measure:
        target, other = (directions_of(name, spec.id, self.plan, self.source) for name in (concept.id, neighbour))
        for table in (target, other):
            if isinstance(table, Failure):
                fields = {"neighbour": neighbour, "direction": self.direction}
                return Measure.failed(f"d3.rep_{relation}", table.error, **fields)
        return d3_rep_measure(target, other, neighbour=neighbour, relation=relation, direction=self.direction)
