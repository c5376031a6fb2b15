"""Stages of D2 and D3: scorers and their gate, steered texts with their likelihood, and the scores of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from poolbench.concepts import Concept
from poolbench.config import folder_revision
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.steps import scorer as steps
from poolbench.steps.base import Keys
from poolbench.steps.extractor import CALIBRATE, CALIBRATION, PASSAGES, CalibrateParams
from poolbench.steps.prober import NULL_DIRECTIONS, VECTORS, NullParams
from poolbench.steps.prober import NULLS as NULLS_ROLE
from poolbench.steps.prober import PASSAGES as SPLIT_PASSAGES
from poolbench.steps.roles import Cell, SplitCell
from poolbench.steps.steerer import CONTINUATIONS as CONTINUED
from poolbench.steps.steerer import (
    CONTINUE,
    DIRECTIONS,
    FLUENCY,
    GENERATE,
    IMPORTED,
    PROMPTS,
    READ,
    TEXTS,
    ContinueParams,
    GenerateParams,
    ReadParams,
)
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.corpora.sources import calibration_step, openings_step, passages_step, prompted_step
from poolbench_driver.imports.steered_texts import ImportedTexts, texts_step
from poolbench_driver.stages.probes import Probes
from poolbench_driver.stages.scope import NULL_BASE, Scope
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.vectors import Vectors


@dataclass(frozen=True)
class ScorerKeys:
    """Artifact keys of one concept's scorer, the measures of its training, and its gate."""

    scorer: str
    training: str
    continuations: str
    gate: str


@dataclass(frozen=True)
class Scorers(Stage):
    """Scorers by concept id."""

    concepts: Mapping[str, ScorerKeys]


@dataclass(frozen=True)
class Scores(Stage):
    """Keys of the scores of texts."""

    unsteered: str  # unsteered texts, by all scorers
    concepts: Mapping[str, Mapping[str, str]]  # by concept id, then by strategy id or `NULLS`


def plan_scorers(scope: Scope) -> Scorers:
    """Plan training and gate of every scorer.

    Part (b) of the gate reads the model's own continuations of passage halves.
    """
    draft, config, budget = Draft(), scope.config, scope.config.budget
    concepts: dict[str, ScorerKeys] = {}
    for concept in scope.scored_concepts:
        test = draft.add_local(passages_step(config, concept, "test"))
        params = steps.TrainParams(
            concept=concept.id, mode=config.scorer_mode, seed=config.seed, **_base_params(config, concept)
        )
        inputs = {steps.SCORER_PASSAGES(): draft.add_local(passages_step(config, concept, "scorer"))}
        trained = draft.add(steps.TRAIN, params, inputs, [steps.SCORER(), steps.MEASURES()])
        generation = ContinueParams(
            **scope.model_params, num_passages=budget.num_continuations, max_tokens=budget.max_tokens
        )
        continuations = draft.add(CONTINUE, generation, {PASSAGES(): test}, [CONTINUED()])[CONTINUED()]
        gate_inputs = {
            steps.SCORER(): trained[steps.SCORER()],
            steps.TEST_PASSAGES(): test,
            steps.CONTINUATIONS(): continuations,
        }
        gate_params = steps.GateParams(num_tokens=budget.max_tokens, seed=config.seed)
        gate = draft.add(steps.GATE, gate_params, gate_inputs, [steps.MEASURES()])[steps.MEASURES()]
        concepts[concept.id] = ScorerKeys(trained[steps.SCORER()], trained[steps.MEASURES()], continuations, gate)
    return Scorers(draft.work, concepts)


def plan_scores(scope: Scope, scorers: Scorers, unsteered: Unsteered, steered: SteeredTexts) -> Scores:
    """Plan the scores of all steered texts by each concept's scorers, and of the unsteered ones by all."""
    draft = Draft()
    base = _plan_scores_of(draft, scorers, list(scorers.concepts), {UNSTEERED: unsteered.texts.texts})[UNSTEERED]
    concepts: dict[str, dict[str, str]] = {}
    for name, concept_texts in steered.concepts.items():
        scorer_names, concepts[name] = scope.scorers_of(concept_texts.concept), {}
        for batch in [[NULLS], *scope.strategy_batches]:
            texts = {strategy: concept_texts.texts[strategy].texts for strategy in batch}
            concepts[name] |= _plan_scores_of(draft, scorers, scorer_names, texts)
    return Scores(draft.work, base, concepts)


def _base_params(config: ConceptsConfig, concept: Concept) -> dict[str, Any]:
    """Return what identifies the base of a scorer: its name, layers, revision, and a published classifier's place.

    A folder is named by its absolute path, because the service runs elsewhere, and its revision is a hash.
    """
    imports, folder = config.scorer_mode == "import", Path(config.scorer_base).expanduser()
    params: dict[str, Any] = {"base": str(folder.resolve()) if folder.is_dir() else config.scorer_base}
    if config.scorer_layers is not None:
        params["num_layers"] = config.scorer_layers
    subfolder = config.scorer_subfolder.replace("{concept}", concept.id) if imports else ""
    place = Path(params["base"]) / subfolder
    revision = folder_revision(place) if place.is_dir() else config.scorer_revision
    if revision is not None:
        params["revision"] = revision
    return params | ({"subfolder": subfolder, "positive_label": config.scorer_positive_label} if imports else {})


def _plan_scores_of(draft: Draft, scorers: Scorers, names: Sequence[str], texts: Mapping[str, str]) -> dict[str, str]:
    inputs = {steps.SCORERS(name): scorers.concepts[name].scorer for name in names}
    inputs |= {TEXTS(name): key for name, key in texts.items()}
    outputs = draft.add(steps.SCORE, steps.ScoreParams(), inputs, [steps.SCORES(name) for name in texts])
    return {name: outputs[steps.SCORES(name)] for name in texts}


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


class PromptedConcept(NamedTuple):
    """Keys of the texts of a concept's instruction and of the neutral one, and of their scores by its scorer."""

    texts: Mapping[str, Texts]  # by `NEUTRAL` and `PROMPTED`
    scores: Mapping[str, str]


@dataclass(frozen=True)
class Prompted(Stage):
    """The baseline of prompting, by concept id; empty where it is not asked for."""

    concepts: Mapping[str, PromptedConcept]


#: Names of the texts of a chat without and with a concept's instruction.
NEUTRAL, PROMPTED = "neutral", "prompted"


def plan_prompted(scope: Scope, scorers: Scorers) -> Prompted:
    """Plan unsteered replies of a chat model that is asked for each concept, and their scores."""
    draft, budget, concepts = Draft(), scope.config.budget, dict[str, PromptedConcept]()
    for concept in scope.concepts if scope.config.prompted else ():
        texts: dict[str, Texts] = {}
        for name, towards in ((NEUTRAL, None), (PROMPTED, concept)):
            prompts = draft.add_local(prompted_step(budget.opening_set, budget.num_openings, towards))
            texts[name] = _generate(scope, draft, {PROMPTS(): prompts}, {UNSTEERED: None}, [0.0])[UNSTEERED]
        keys = {name: keys.texts for name, keys in texts.items()}
        concepts[concept.id] = PromptedConcept(texts, _plan_scores_of(draft, scorers, [concept.id], keys))
    return Prompted(draft.work, concepts)


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
            if scope.imported_texts is not None:
                texts |= _read_texts(scope, draft, scope.imported_texts, concept_vectors.concept, batch)
                continue
            directions = probes.concepts[name].directions
            keys = {strategy: directions[Cell(strategy, scope.steering_layer)] for strategy in batch}
            texts |= _generate(scope, draft, shared, keys, budget.strengths, (scope.config.steering.direction,))
        concepts[name] = ConceptTexts(concept_vectors.concept, nulls, texts)
    return SteeredTexts(draft.work, concepts)


def _read_texts(
    scope: Scope, draft: Draft, imported: ImportedTexts, concept: Concept, strategies: Sequence[str]
) -> dict[str, Texts]:
    """Plan one task that reads imported texts of some strategies; return the keys by strategy."""
    budget = scope.config.budget
    openings = (budget.opening_set, budget.num_openings)
    inputs = {
        IMPORTED(strategy): draft.add_local(
            texts_step(imported, concept, strategy, scope.config.steering.direction, openings)
        )
        for strategy in strategies
    }
    params = ReadParams(**scope.model_params, layer=scope.steering_layer)
    outputs = draft.add(READ, params, inputs, [role(name) for name in strategies for role in (TEXTS, FLUENCY)])
    return {name: Texts(outputs[TEXTS(name)], outputs[FLUENCY(name)]) for name in strategies}


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
