"""The plan: a pure function from configuration and present artifacts to tasks. Which are done, the store says.

Every key is known before anything runs, because keys are derivations. So the plan is always the whole job;
a rerun sends what is not committed, and a changed setting moves only the keys that depend on it. What is
present decides nothing but who makes vectors: where states were kept, the pooler, without the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from poolbench.concepts import get_concept
from poolbench.config import RunConfig
from poolbench.pooling.registry import StrategySpec
from poolbench_driver.imports.saes import SaeInput
from poolbench_driver.models import ModelInfo
from poolbench_driver.plan.plan import (
    NULLS,
    UNSTEERED,
    ConceptPlan,
    Plan,
    ScorerPlan,
    scored_concepts,
    scorers_of,
    wanted_scorers,
)
from poolbench_driver.plan.probes import (
    plan_components,
    plan_neighbour_directions,
    plan_nested_layers,
    plan_null_directions,
    plan_probes,
    plan_published_probes,
)
from poolbench_driver.plan.scorers import plan_scorer, plan_scores
from poolbench_driver.plan.steering import plan_shared_steering, plan_steering
from poolbench_driver.plan.vectors import plan_frequencies, plan_neighbour_vectors, plan_vectors

__all__ = ["NULLS", "UNSTEERED", "ConceptPlan", "Plan", "ScorerPlan", "make_plan", "scorers_of", "wanted_scorers"]


def make_plan(
    config: RunConfig,
    model: ModelInfo,
    strategies: Sequence[StrategySpec],
    annotator_version: str | None = None,
    absent: Mapping[str, str] | None = None,
    present: Collection[str] = (),
    saes: Mapping[int, SaeInput] | None = None,
) -> Plan:
    """Plans a run.

    Args:
        config: What to measure.
        model: Revision, depth and width of the model.
        strategies: Registered strategies to rank, implemented or not.
        annotator_version: Version of the spaCy pipeline; another one makes other annotations.
        absent: Neighbours that the corpus has no passages of, with the reason: they get no scorer.
        present: Keys of the committed artifacts.
        saes: Sparse autoencoders by layer.
    """
    plan = _empty_plan(config, model, strategies)
    plan.absent, plan.present = dict(absent or {}), frozenset(present)
    plan.annotator = {"pipeline": config.annotator, "pipeline_version": annotator_version}
    _add_saes(plan, saes or {})
    plan_frequencies(plan)
    for cells in plan.concepts.values():
        plan_vectors(plan, cells, ("train", "test"), plan.layers_with_steering())
    plan_components(plan)
    for cells in plan.concepts.values():
        plan_probes(plan, cells)
        plan_published_probes(plan, cells)
        plan_nested_layers(plan, cells)
    if plan.steers:
        _plan_d2_and_d3(plan)
    return plan


def _empty_plan(config: RunConfig, model: ModelInfo, strategies: Sequence[StrategySpec]) -> Plan:
    layers = model.layers(config.layers)
    plan = Plan(config, model, layers, layers[-1], list(strategies))
    if plan.steers:
        plan.steering_layer = model.layer(config.steering_layer)
    plan.concepts |= {name: ConceptPlan(get_concept(name)) for name in config.concepts}
    return plan


def _add_saes(plan: Plan, saes: Mapping[int, SaeInput]) -> None:
    plan.saes = {layer: (sae.key, sae.num_features) for layer, sae in saes.items()}
    for sae in saes.values():
        if sae.step is not None:
            plan.add_local(sae.step)


def _plan_d2_and_d3(plan: Plan) -> None:
    """Scorers, null directions, steered texts and their scores; then what D3 asks of neighbours."""
    plan_shared_steering(plan)
    for concept in scored_concepts(plan):
        plan_scorer(plan, concept)
    for cells in plan.concepts.values():
        plan_null_directions(plan, cells)
        plan_steering(plan, cells)
    plan_scores(plan)
    plan_neighbour_vectors(plan)
    for cells in plan.neighbours.values():
        plan_neighbour_directions(plan, cells)
