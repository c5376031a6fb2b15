"""The steered texts of each strategy with their scores and likelihoods: what D2 and D3 are measured from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import pyarrow as pa
from cachetools import LRUCache

from poolbench.concepts import Concept
from poolbench.contracts import Row
from poolbench.contracts.measures import GatedScorer, Measure, to_rows
from poolbench.contracts.tables import SCORES, error_of
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.errors import CellError
from poolbench.pooling.registry import StrategySpec
from poolbench.statistics.response import SteeredTables
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench_driver.contract.source import RowSource, missing, strategy_columns
from poolbench_driver.measures.cosines import direction_vector
from poolbench_driver.measures.prompting import prompted_gain
from poolbench_driver.measures.response import SteeringRules, rules_of
from poolbench_driver.pages.boards.cell_table import WORST_STATUSES
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.plan import ConceptsPlan, SteeringStages
from poolbench_driver.stages.steering import NEUTRAL, PROMPTED, Texts

#: A strategy whose D1 cell has one of these is not used for steering either: its direction is not its own.
UNUSABLE = (*WORST_STATUSES, Status.ONE_CLASS, Status.TOO_FEW, Status.NON_FINITE)
#: Columns of each text beside its scores.
ORIGIN = ("text_id", "prompt_id", "direction_key", "strength", "num_tokens", "repeated_4grams", "sample")


class CellTexts(NamedTuple):
    """Texts along the direction of one strategy, unsteered texts, and texts along the null directions.

    All texts continue the same openings.
    """

    steered: SteeredTables
    unsteered: SteeredTables
    nulls: SteeredTables | None = None  # None leaves out figures in excess of the null directions


class SteeredCell(NamedTuple):
    """One strategy that steers towards one concept along one direction, with its texts or the error without texts."""

    concept: Concept
    strategy: StrategySpec
    entrant: str  # the strategy, and its direction if that is a further one
    rules: SteeringRules
    texts: CellTexts | CellError


@dataclass(frozen=True)
class SteeringResults:
    """The results of a plan's steerer and scorers."""

    plan: ConceptsPlan
    stages: SteeringStages
    source: RowSource
    _recent: LRUCache[str, SteeredTables] = field(default_factory=lambda: LRUCache(3), init=False)

    @cached_property
    def rules(self) -> SteeringRules:
        """Return the settings with which D2 and D3 are measured. `cells` sets the direction of each cell."""
        return rules_of(self.plan.scope.config)

    @cached_property
    def scorers(self) -> dict[str, GatedScorer]:
        """Return the scorers by concept. Absent scorers are included, with status `no_scorer`."""
        absent = self.plan.scope.absent
        scorers = {name: GatedScorer(name, Status.NO_SCORER, reason) for name, reason in absent.items()}
        for name, keys in self.stages.scorers.concepts.items():
            gate = self.source.table(keys.gate)
            if isinstance(gate, Failure):
                scorers[name] = GatedScorer(name, Status.NO_SCORER, gate.reason)
            else:
                scorers[name] = GatedScorer.from_gate(name, gate.to_pylist())
        return scorers

    def cells(self, concept: Concept) -> Iterator[SteeredCell]:
        """Yield the texts of each strategy that steers towards a concept, along each direction."""
        steering = self.plan.scope.config.steering
        for direction, strategy in product(steering.directions, self.plan.scope.strategies):
            entrant = steering.entrant(strategy.id, direction)
            try:
                texts: CellTexts | CellError = self._texts(concept, strategy, direction)
            except CellError as error:
                texts = error
            yield SteeredCell(concept, strategy, entrant, replace(self.rules, direction=direction), texts)

    def _texts(self, concept: Concept, strategy: StrategySpec, direction: str) -> CellTexts:
        """Return the texts of a strategy along a direction.

        Raise CellError if an artifact is missing, if D1 has a status in `UNUSABLE`, or if the direction is null.
        """
        at = Cell(strategy.id, self.plan.scope.steering_layer)
        measures = self.source.required(self.plan.probes.concepts[concept.id].measures[at]).to_pylist()
        d1 = next((row for row in measures if row["metric"] == "d1.auroc"), None)
        if d1 and d1["status"] in UNUSABLE:
            raise error_of(d1, f"D1 is {d1['status']}")
        direction_vector(self.directions(concept.id, strategy.id), direction)
        entrant = self.plan.scope.config.steering.entrant(strategy.id, direction)
        keys, scores = self.stages.texts.concepts[concept.id].texts, self.stages.scores.concepts[concept.id]
        steered = self._tables(keys[entrant], scores[entrant])
        unsteered = self._tables(self.stages.unsteered.texts, self.stages.scores.unsteered)
        return CellTexts(steered, unsteered, self._tables(keys[NULLS], scores[NULLS]))

    def directions(self, concept: str, strategy: str) -> pa.Table:
        """Return DIRECTIONS of a concept at the steering layer. Raise CellError if the concept has no directions."""
        scope, probes = self.plan.scope, self.plan.probes.concepts
        if concept in scope.absent:
            raise CellError(Status.NO_SCORER, scope.absent[concept])
        at = Cell(strategy, scope.steering_layer)
        is_measured = concept in probes
        return self.source.required(
            probes[concept].directions[at] if is_measured else self.stages.neighbour_directions.concepts[concept][at]
        )

    def _tables(self, keys: Texts, scores: str) -> SteeredTables:
        """Return the tables of some texts. The last three are cached, because cells share unsteered and null texts."""
        if scores not in self._recent:
            self._recent[scores] = SteeredTables(
                self.source.required(keys.texts), self.source.required(scores), self.source.required(keys.fluency)
            )
        return self._recent[scores]

    def rows(self, cell: SteeredCell, measures: Iterable[Measure]) -> Iterator[Row]:
        """Yield measures of a cell as result rows.

        `params` holds the generation settings that differ from the default, and whether the texts were imported.
        """
        scope = self.plan.scope
        identity = {
            **strategy_columns(cell.strategy),
            "strategy": cell.entrant,
            "concept": cell.concept.id,
            "layer": scope.steering_layer,
            "alpha_unit": scope.config.budget.alpha_unit,
            "opening_set": scope.config.budget.opening_set,
        }
        settings = scope.config.steering.changed() | ({"texts": "imported"} if scope.imported_texts else {})
        for row in to_rows(measure.with_fields(params={**settings, **measure.params}) for measure in measures):
            yield {**identity, **row}

    def prompted_rows(self, concept: Concept) -> Iterator[Row]:
        """Yield `d2.prompted`, the gain by a prompt instead of steering, for a concept if the run measures it."""
        keys = self.stages.prompted.concepts.get(concept.id)
        if keys is None or "d2" not in self.plan.scope.config.metrics:
            return
        try:
            neutral, prompted = (
                (self.source.required(keys.texts[name].texts), self.source.required(keys.scores[name]))
                for name in (NEUTRAL, PROMPTED)
            )
            measure = prompted_gain(prompted, neutral, self.scorers[concept.id], self.rules)
        except CellError as error:
            measure = Measure.failed("d2.prompted", error)
        opening_set = self.plan.scope.config.budget.opening_set
        yield {**measure.to_row(), "concept": concept.id, "scorer": concept.id, "opening_set": opening_set}

    def scorer_rows(self) -> Iterator[Row]:
        """Yield the training figures and the gate of every scorer as result rows."""
        for name, keys in self.stages.scorers.concepts.items():
            for key, metric in ((keys.training, "scorer.auroc"), (keys.gate, "scorer.gate")):
                table = self.source.table(key)
                measures = [missing(metric, table)] if isinstance(table, Failure) else table.to_pylist()
                yield from ({**row, "concept": name, "scorer": name} for row in measures)  # a failure names none

    def text_scores(self) -> Iterator[Row]:
        """Yield the scores of each text, with all numbers that D2 and D3 need. The texts stay in the object store.

        Unsteered texts come last. They are scored by every scorer and belong to no concept.
        """
        for concept, scores in self.stages.scores.concepts.items():
            texts = self.stages.texts.concepts[concept].texts
            for name, key in scores.items():
                yield from ({"concept": concept, "name": name, **row} for row in self._scores(texts[name], key))
        for row in self._scores(self.stages.unsteered.texts, self.stages.scores.unsteered):
            yield {"concept": None, "name": UNSTEERED, **row}

    def _scores(self, keys: Texts, scores_key: str) -> Iterator[Row]:
        """Yield the scores of some texts, with the opening, direction number, strength and likelihood of each text."""
        scores, texts, fluency = (self.source.table(key) for key in (scores_key, keys.texts, keys.fluency))
        if isinstance(scores, Failure):
            return
        origins: dict[str, Row] = {}
        if not isinstance(texts, Failure):
            numbers: dict[str, int] = {}
            for row in texts.select([name for name in ORIGIN if name in texts.schema.names]).to_pylist():
                # A number replaces the direction's key, which names the concept.
                row["direction"] = numbers.setdefault(row.pop("direction_key"), len(numbers))
                origins[row.pop("text_id")] = row
            if not isinstance(fluency, Failure):
                for row in fluency.select(["text_id", "mean_nll"]).to_pylist():
                    origins[row["text_id"]]["mean_nll"] = row["mean_nll"]
        for row in scores.select(SCORES.names).to_pylist():  # no other column may leave the store
            yield {**row, **origins.get(row["text_id"], {})}
