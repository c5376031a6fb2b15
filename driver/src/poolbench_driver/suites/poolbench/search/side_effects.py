"""What a vector does to other concepts: their scorers read the texts of the held-out openings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.contracts.tables import TEXTS
from poolbench.errors import CellError, ConfigError, CorpusError, UnknownConceptError
from poolbench.statuses import Status
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.source import RowSource
from poolbench_driver.corpora.sources import absent_concepts
from poolbench_driver.loop import RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.stages.stage import Draft, Plan, PlannedWork, Stage, committed_keys
from poolbench_driver.stages.steering import Scorers, plan_scorers, plan_scores_of
from poolbench_driver.suites.poolbench.measures.prompting import paired_gain
from poolbench_driver.suites.poolbench.measures.response import SteeringRules
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
from poolbench_driver.suites.poolbench.search.figures import card_measure
from poolbench_driver.suites.poolbench.search.held_out import HeldOutText, text_keys
from poolbench_driver.vectors.card import CardMeasure


def checked_concepts(names: Sequence[str], concept: str) -> tuple[str, ...]:
    """Return the concepts whose scorers read side effects on a concept. Raise ConfigError for itself or an unknown."""
    if concept in names:
        raise ConfigError(f"--side-effects {concept}: name other concepts; its own gain is read anyway")
    return tuple(dict.fromkeys(CONCEPTS.get(name).id for name in names))


@dataclass(frozen=True)
class SideEffects:
    """Texts of the held-out openings along a vector and unsteered, which scorers of other concepts read."""

    plan: PoolBenchPlan  # of the run that has them
    run_id: str
    concept: str
    entrant: str  # strategy, and construction where it is a further one
    texts: Sequence[HeldOutText]

    def measures(self, names: Sequence[str], session: Session, display: Display) -> list[CardMeasure]:
        """Return the mean rise of each scorer at the chosen strength, or a null with its reason.

        The scorers of `names` are trained where the store has none. Without names, they are those of the concept's
        neighbours that the store has.
        """
        scorers, lacking = self._scorers(names, session)
        measures = [_null(name, CellError(Status.NO_SCORER, reason)) for name, reason in lacking.items()]
        if not scorers.concepts:
            return measures
        config, draft = self.plan.scope.config, Draft()
        keys = plan_scores_of(draft, scorers, list(scorers.concepts), text_keys(self.plan, self.concept, self.entrant))
        work = Plan.of(config, self.plan.facts, scorers, Stage(draft.work))
        loop = RunLoop(work, session.artifacts, session.queue, session.leases, display, run_id=self.run_id)
        source = RowSource(session.artifacts, loop.run(), work.producers)
        rules = SteeringRules(num_bootstrap=config.budget.num_bootstrap, seed=config.seed)
        for name, of_scorer in scorers.concepts.items():
            try:
                scorer = GatedScorer.from_gate(name, source.required(of_scorer.gate).to_pylist())
                scores = pa.concat_tables([source.required(key) for key in keys.values()])
                measures.append(side_effect(scorer, self.texts, scores, rules))
            except CellError as error:
                measures.append(_null(name, error))
        return measures

    def _scorers(self, names: Sequence[str], session: Session) -> tuple[Scorers, dict[str, str]]:
        """Return the scorers, and why others are lacking."""
        scope, concept = self.plan.scope, CONCEPTS.get(self.concept)
        lacking = absent_concepts(scope.config, names, beside_own=bool(concept.corpus))
        registered = [name for name in names or concept.neighbours if name not in lacking]
        config = scope.config.model_copy(update={"concepts": tuple(registered), "metrics": ("d2",)})
        try:
            scorers = plan_scorers(replace(scope, config=config))
        except (UnknownConceptError, CorpusError) as error:  # a neighbour that was removed, or has no passages
            return Scorers(PlannedWork(), {}), lacking | dict.fromkeys(registered, str(error))
        if names:
            return scorers, lacking
        present = committed_keys(session.artifacts)
        at_hand = {name: keys for name, keys in scorers.concepts.items() if {keys.scorer, keys.gate} <= present}
        remedy = "the store has no scorer of it; --side-effects names concepts whose scorers are trained"
        return Scorers(PlannedWork(), at_hand), {name: remedy for name in registered if name not in at_hand}


def side_effect(
    scorer: GatedScorer, texts: Sequence[HeldOutText], scores: pa.Table, rules: SteeringRules
) -> CardMeasure:
    """Return the mean rise of a scorer on the held-out openings; `scores` is a table SCORES, also of other texts.

    Raise CellError as `paired_gain`.
    """
    steered, unsteered = (
        (ids, scores.filter(pc.is_in(scores["text_id"], value_set=ids["text_id"])))
        for ids in (_ids(texts, is_steered=True), _ids(texts, is_steered=False))
    )
    return card_measure(paired_gain(f"side_effects.{scorer.concept}", steered, unsteered, scorer, rules))


def _ids(texts: Sequence[HeldOutText], is_steered: bool) -> pa.Table:
    rows = [{"text_id": t.text_id, "prompt_id": t.prompt_id} for t in texts if t.is_steered is is_steered]
    return pa.Table.from_pylist(rows, pa.schema([TEXTS.field("text_id"), TEXTS.field("prompt_id")]))


def _null(name: str, error: CellError) -> CardMeasure:
    return card_measure(Measure.failed(f"side_effects.{name}", error))
