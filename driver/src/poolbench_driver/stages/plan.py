"""The plan of a run that measures concepts: vectors, probes and steered texts, joined once."""

from dataclasses import dataclass
from typing import NamedTuple

from poolbench_driver.stages.probes import (
    Components,
    Directions,
    Probes,
    plan_components,
    plan_neighbour_directions,
    plan_probes,
)
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan, Stage, joined
from poolbench_driver.stages.steering import (
    Prompted,
    Scorers,
    Scores,
    SteeredTexts,
    Unsteered,
    plan_prompted,
    plan_scorers,
    plan_scores,
    plan_steering,
    plan_unsteered,
)
from poolbench_driver.stages.vectors import PooledVectors, plan_neighbour_vectors, plan_vectors


class SteeringStages(NamedTuple):
    """The stages of D2 and D3, in sending order."""

    unsteered: Unsteered
    scorers: Scorers
    texts: SteeredTexts
    scores: Scores
    prompted: Prompted
    neighbour_vectors: PooledVectors
    neighbour_directions: Directions


@dataclass(frozen=True)
class ConceptsPlan(Plan):
    """The plan of a run that measures concepts."""

    scope: Scope
    vectors: PooledVectors
    components: Components
    probes: Probes
    steering: SteeringStages | None  # D2 and D3; None if neither is measured

    @property
    def steered(self) -> SteeringStages:
        """Return the stages of steering of a plan that is known to have these."""
        assert self.steering is not None
        return self.steering


def make_plan(scope: Scope) -> ConceptsPlan:
    """Return the plan of a run.

    The plan depends on the configuration and on present artifacts alone. Every key of an artifact is known before
    anything runs, because keys are hashes of the inputs. The plan is therefore always the whole job. A rerun sends only
    the tasks that are not committed, and a changed setting changes only the keys that depend on the setting.
    """
    vectors = plan_vectors(scope)
    components = plan_components(scope, vectors)
    probes = plan_probes(scope, vectors, components)
    stages: list[Stage] = [vectors, components, probes]
    steering = None
    if scope.steers:
        unsteered, scorers = plan_unsteered(scope), plan_scorers(scope)
        texts = plan_steering(scope, vectors, probes, unsteered, scorers)
        scores = plan_scores(scope, scorers, unsteered, texts)
        prompted = plan_prompted(scope, scorers)
        neighbours = plan_neighbour_vectors(scope, vectors)
        directions = plan_neighbour_directions(scope, neighbours, components)
        steering = SteeringStages(unsteered, scorers, texts, scores, prompted, neighbours, directions)
        stages += steering
    return ConceptsPlan(scope.config, joined(stages), scope.facts, scope, vectors, components, probes, steering)


def num_texts(scope: Scope) -> dict[str, int]:
    """Count the texts that a run generates at most, without the continuations for the scorers' gate.

    If reading is lazy, the second half of the openings has at most one strength more than the null directions. D2 and
    D3 use the same texts. Unsteered texts are generated once for all concepts.
    """
    if not scope.steers:
        return {"steered": 0, "null": 0, "unsteered": 0}
    budget, steering = scope.config.budget, scope.config.steering
    texts = budget.num_openings * steering.num_samples
    concepts = len(scope.concepts) * texts
    first = budget.num_openings // 2 if scope.is_lazy else budget.num_openings
    at_second = min(len(budget.null_strengths) + 1, len(budget.strengths))
    per_entrant = first * len(budget.strengths) + (budget.num_openings - first) * at_second
    entrants = len(scope.concepts) * len(scope.strategies) * len(steering.directions)
    steered = entrants * per_entrant * steering.num_samples
    prompted = {"prompted": concepts + texts} if scope.config.prompted else {}
    return {
        "steered": 0 if scope.imported_texts else steered,
        "null": concepts * budget.num_nulls * len(budget.null_strengths),
        "unsteered": texts,
        **prompted,
    }
