"""What a vector does to other concepts: their scorers read the texts of the held-out openings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.errors import ConfigError
from poolbench.statuses import Status
from poolbench_driver.cluster.session import Session
from poolbench_driver.find.figures import card_measure
from poolbench_driver.find.held_out import HeldOutText, text_keys
from poolbench_driver.find.scoring import figure, gated, scorers_of, send
from poolbench_driver.loop.progress import Display
from poolbench_driver.measures.prompting import paired_gain
from poolbench_driver.measures.response import SteeringRules, rules_of
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.steering import plan_scores_of
from poolbench_driver.vectors.card import CardMeasure


def checked_concepts(names: Sequence[str], concept: str) -> tuple[str, ...]:
    """Return the concepts whose scorers read side effects on a concept. Raise ConfigError for itself or an unknown."""
    if concept in names:
        raise ConfigError(f"--side-effects {concept}: name other concepts; its own gain is read anyway")
    return tuple(dict.fromkeys(CONCEPTS.get(name).id for name in names))


@dataclass(frozen=True)
class SideEffects:
    """Texts of the held-out openings along a vector and unsteered, which scorers of other concepts read."""

    plan: ConceptsPlan  # of the run that has them
    run_id: str
    concept: str
    entrant: str  # strategy, and construction where it is a further one
    texts: Sequence[HeldOutText]

    def measures(self, names: Sequence[str], session: Session, display: Display) -> list[CardMeasure]:
        """Return the mean rise of each scorer at the chosen strength, or a null with its reason.

        If the store lacks a scorer of `names`, the scorer is trained. Without names, the scorers are those of the
        concept's neighbours, as far as the store has them.
        """
        others = names or tuple(CONCEPTS.get(self.concept).neighbours)
        scorers, lacking = scorers_of(self.plan, self.concept, others, session, train=bool(names))
        measures = [
            card_measure(Measure.null(f"side_effects.{name}", Status.NO_SCORER, reason))
            for name, reason in lacking.items()
        ]
        if not scorers.concepts:
            return measures
        draft, rules = Draft(), rules_of(self.plan.scope.config)
        texts = text_keys(self.plan, self.concept, self.entrant)
        keys = plan_scores_of(draft, scorers, list(scorers.concepts), texts)
        source = send(self.plan, session, display, scorers, Stage(draft.work), run_id=self.run_id)

        def rise(metric: str) -> Measure:
            scorer = gated(metric.removeprefix("side_effects."), scorers, source)
            scores = pa.concat_tables([source.required(key) for key in keys.values()])
            return side_effect(scorer, self.texts, scores, rules)

        return measures + [figure(f"side_effects.{name}", rise) for name in scorers.concepts]


def side_effect(scorer: GatedScorer, texts: Sequence[HeldOutText], scores: pa.Table, rules: SteeringRules) -> Measure:
    """Return the mean rise of a scorer on the held-out openings; `scores` is a table SCORES, also of other texts.

    Raise CellError as `paired_gain`.
    """
    ids = [{name: getattr(text, name) for name in ("text_id", "prompt_id", "is_steered")} for text in texts]
    table = pa.Table.from_pylist(ids)
    steered, unsteered = ((table.filter(pc.equal(table["is_steered"], side)), scores) for side in (True, False))
    return paired_gain(f"side_effects.{scorer.concept}", steered, unsteered, scorer, rules)
