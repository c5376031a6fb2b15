"""What a vector does to other concepts: their scorers read the texts of the held-out openings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.contracts.tables import TEXTS
from poolbench.errors import CellError, ConfigError, UnknownConceptError
from poolbench.statuses import Status
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.source import RowSource
from poolbench_driver.corpora.sources import absent_concepts
from poolbench_driver.loop import Failure, RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.stages.stage import Draft, Plan, PlannedWork, committed_keys
from poolbench_driver.stages.steering import Scorers, plan_scorers, plan_scores_of
from poolbench_driver.suites.poolbench.measures.prompting import paired_gain
from poolbench_driver.suites.poolbench.measures.response import SteeringRules
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
from poolbench_driver.suites.poolbench.search.figures import card_measure
from poolbench_driver.suites.poolbench.search.held_out import text_keys
from poolbench_driver.vectors.card import CardMeasure


def checked_concepts(names: Sequence[str], concept: str) -> tuple[str, ...]:
    """Return the concepts whose scorers read side effects on a concept. Raise ConfigError for itself or an unknown."""
    if concept in names:
        raise ConfigError(f"--side-effects {concept}: name other concepts; its own gain is read anyway")
    return tuple(dict.fromkeys(CONCEPTS.get(name).id for name in names))


@dataclass(frozen=True)
class SideEffects:
    """The texts of a vector, which scorers of other concepts read.

    Attributes:
        plan: The plan of the run that has the texts.
        run_id: Its id.
        concept: Id of the vector's concept.
        entrant: Strategy, and construction where it is a further one.
        rows: Rows of `text_scores` of the held-out openings, and whether the text is steered.
    """

    plan: PoolBenchPlan
    run_id: str
    concept: str
    entrant: str
    rows: Sequence[tuple[bool, Row]]

    def measures(self, names: Sequence[str], session: Session, display: Display) -> list[CardMeasure]:
        """Return the mean rise of each scorer at the chosen strength, or a null with its reason.

        Args:
            names: Concepts, whose scorers are trained where the store has none. Without any, the concept's neighbours
                of which the store has a scorer.
            session: Store and queue.
            display: Shows the tasks.
        """
        scorers, lacking = self._scorers(names, session)
        measures = {name: _null(name, error) for name, error in lacking.items()}
        failures = self._run(scorers.work, session, display)
        producers = {key: task for task in scorers.work.tasks.values() for key in task.outputs.values()}
        source, valid = RowSource(session.artifacts, failures, producers), dict[str, GatedScorer]()
        for name, keys in scorers.concepts.items():
            try:
                scorer = GatedScorer.from_gate(name, source.required(keys.gate).to_pylist())
                scorer.require_valid()
                valid[name] = scorer
            except CellError as error:
                measures[name] = _null(name, error)
        if valid:
            measures |= self._measured(valid, scorers, session, display)
        return [measures[name] for name in names or CONCEPTS.get(self.concept).neighbours if name in measures]

    def _scorers(self, names: Sequence[str], session: Session) -> tuple[Scorers, dict[str, CellError]]:
        """Return the scorers that are planned or at hand, and why others are lacking."""
        config, concept = self.plan.scope.config, CONCEPTS.get(self.concept)
        reasons = dict[str, str]()
        for name in () if names else concept.neighbours:
            try:
                CONCEPTS.get(name)
            except UnknownConceptError as error:  # the user's own concepts may have neighbours that were removed
                reasons[name] = str(error)
        reasons |= absent_concepts(config, names, beside_own=bool(concept.corpus))
        registered = [name for name in names or concept.neighbours if name not in reasons]
        settings = config.model_copy(update={"concepts": tuple(registered), "metrics": ("d2",)})
        scorers = plan_scorers(replace(self.plan.scope, config=settings))
        if not names:
            present = committed_keys(session.artifacts)
            at_hand = {name: keys for name, keys in scorers.concepts.items() if {keys.scorer, keys.gate} <= present}
            scorers = Scorers(PlannedWork(), at_hand)
            remedy = "the store has no scorer of it; --side-effects names concepts whose scorers are trained"
            reasons |= {name: remedy for name in registered if name not in at_hand}
        return scorers, {name: CellError(Status.NO_SCORER, reason) for name, reason in reasons.items()}

    def _run(self, work: PlannedWork, session: Session, display: Display) -> Mapping[str, Failure]:
        plan = Plan(self.plan.config, work, self.plan.facts)
        return RunLoop(plan, session.artifacts, session.queue, session.leases, display, run_id=self.run_id).run()

    def _measured(
        self, valid: Mapping[str, GatedScorer], scorers: Scorers, session: Session, display: Display
    ) -> dict[str, CardMeasure]:
        """Score the texts by valid scorers in one task, and return their measures by concept."""
        draft, texts = Draft(), text_keys(self.plan, self.concept, self.entrant)
        keys = plan_scores_of(draft, scorers, list(valid), texts)
        for failure in self._run(draft.work, session, display).values():
            return {name: _null(name, failure.error) for name in valid}
        scores = pa.concat_tables([session.artifacts.read_table(key) for key in keys.values()])
        config = self.plan.scope.config
        rules = SteeringRules(num_bootstrap=config.budget.num_bootstrap, seed=config.seed)
        return {name: side_effect(scorer, self.rows, scores, rules) for name, scorer in valid.items()}


def side_effect(
    scorer: GatedScorer, held_out: Sequence[tuple[bool, Row]], scores: pa.Table, rules: SteeringRules
) -> CardMeasure:
    """Return the mean rise of a scorer on the held-out openings; `scores` is a table SCORES, with others too."""
    sides = []
    for side in (True, False):
        ids = [{name: row[name] for name in ("text_id", "prompt_id")} for steered, row in held_out if steered is side]
        texts = pa.Table.from_pylist(ids, pa.schema([TEXTS.field(name) for name in ("text_id", "prompt_id")]))
        sides.append((texts, scores.filter(pc.is_in(scores["text_id"], value_set=texts["text_id"]))))
    try:
        return card_measure(paired_gain(f"side_effects.{scorer.concept}", *sides, scorer, rules))
    except CellError as error:
        return _null(scorer.concept, error)


def _null(name: str, error: CellError) -> CardMeasure:
    return card_measure(Measure.failed(f"side_effects.{name}", error))
