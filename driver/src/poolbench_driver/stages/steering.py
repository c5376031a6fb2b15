"""Stages of D2 and D3: directions to steered texts and their likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from poolbench.concepts import Concept
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.steps.base import Keys
from poolbench.steps.extractor import CALIBRATE, CALIBRATION, PASSAGES, CalibrateParams
from poolbench.steps.prober import NULL_DIRECTIONS, VECTORS, NullParams
from poolbench.steps.prober import NULLS as NULLS_ROLE
from poolbench.steps.prober import PASSAGES as SPLIT_PASSAGES
from poolbench.steps.roles import Cell, SplitCell
from poolbench.steps.steerer import DIRECTIONS, FLUENCY, GENERATE, PROMPTS, TEXTS, GenerateParams
from poolbench_driver.corpora.sources import calibration_step, openings_step
from poolbench_driver.stages.probes import Probes
from poolbench_driver.stages.scope import NULL_BASE, Scope
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.vectors import Vectors


class Texts(NamedTuple):
    """Keys of texts and of their likelihood under the unsteered model."""

    texts: str
    fluency: str


@dataclass(frozen=True)
class Unsteered(Stage):
    """Artifacts that all concepts share."""

    inputs: Keys  # of every generation: openings and, unless strengths are absolute, the unit of strength
    texts: Texts


@dataclass(frozen=True)
class ConceptTexts:
    """Keys of one concept's null directions, and of its texts by strategy id or `NULLS`."""

    concept: Concept
    nulls: str
    texts: Mapping[str, Texts]


@dataclass(frozen=True)
class SteeredTexts(Stage):
    """Steered texts by concept id."""

    concepts: Mapping[str, ConceptTexts]


def plan_unsteered(scope: Scope) -> Unsteered:
    """Plan the openings, the unsteered texts and, as unit of strength, the calibration norm."""
    draft, budget = Draft(), scope.config.budget
    shared = {PROMPTS(): draft.add_local(openings_step(budget.opening_set, budget.num_openings))}
    if budget.alpha_unit == "residual_norm":
        inputs = {PASSAGES(): draft.add_local(calibration_step())}
        params = CalibrateParams(**scope.model_params, layers=[scope.steering_layer])
        shared |= draft.add(CALIBRATE, params, inputs, [CALIBRATION()])
    texts = _generate(scope, draft, shared, {UNSTEERED: None}, [0.0])
    return Unsteered(draft.work, shared, texts[UNSTEERED])


def plan_steering(scope: Scope, vectors: Vectors, probes: Probes, unsteered: Unsteered) -> SteeredTexts:
    """Plan the texts of every strategy and of each concept's null directions, at the steering layer.

    Null directions are those of permuted labels, from the vectors of one strategy.
    """
    draft, budget, shared = Draft(), scope.config.budget, unsteered.inputs
    base = SplitCell("train", NULL_BASE, scope.steering_layer)
    null_params = NullParams(num_nulls=budget.num_nulls, seed=scope.config.seed)
    concepts: dict[str, ConceptTexts] = {}
    for name, concept_vectors in vectors.concepts.items():
        inputs = {SPLIT_PASSAGES("train"): concept_vectors.passages["train"]}
        inputs[VECTORS(*base)] = concept_vectors.vectors[base]
        nulls = draft.add(NULL_DIRECTIONS, null_params, inputs, [NULLS_ROLE()])[NULLS_ROLE()]
        texts = _generate(scope, draft, shared, {NULLS: nulls}, budget.null_strengths)
        for batch in scope.strategy_batches:
            directions = probes.concepts[name].directions
            keys = {strategy: directions[Cell(strategy, scope.steering_layer)] for strategy in batch}
            texts |= _generate(scope, draft, shared, keys, budget.strengths, (scope.config.steering.direction,))
        concepts[name] = ConceptTexts(concept_vectors.concept, nulls, texts)
    return SteeredTexts(draft.work, concepts)


def _generate(
    scope: Scope,
    draft: Draft,
    shared: Keys,
    directions: Mapping[str, str | None],
    strengths: Sequence[float],
    direction_ids: tuple[str, ...] | Literal["all"] = "all",
) -> dict[str, Texts]:
    """Plan one task that steers along each of the named directions (None: unsteered); return the keys by name.

    Strengths are in the budget's unit. Options at their default stay unset, so that they move no key.
    """
    budget = scope.config.budget
    params = GenerateParams(
        **scope.model_params,
        layer=scope.steering_layer,
        strengths=tuple(strengths),
        max_tokens=budget.max_tokens,
        alpha_unit=budget.alpha_unit,
        direction_ids=direction_ids,
        seed=scope.config.seed,
        **scope.config.steering.changed(),
    )
    inputs = {**shared, **{DIRECTIONS(name): key for name, key in directions.items() if key is not None}}
    roles = [role(name) for name in directions for role in (TEXTS, FLUENCY)]
    outputs = draft.add(GENERATE, params, inputs, roles)
    return {name: Texts(outputs[TEXTS(name)], outputs[FLUENCY(name)]) for name in directions}
