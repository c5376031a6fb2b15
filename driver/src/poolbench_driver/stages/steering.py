"""Stages of D2 and D3: scorers and their gate, steered texts with their likelihood, and the scores of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from poolbench.concepts import CONCEPTS, Concept
from poolbench.config import folder_revision
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.steps import scorer as steps
from poolbench.steps.base import Keys
from poolbench.steps.extractor import CALIBRATE, CALIBRATION, PASSAGES, CalibrateParams
from poolbench.steps.prober import NULL_DIRECTIONS, VECTORS, NullParams
from poolbench.steps.prober import NULLS as NULLS_ROLE
from poolbench.steps.prober import PASSAGES as SPLIT_PASSAGES
from poolbench.steps.roles import Cell, SplitCell
from poolbench.steps.steerer import (
    COMPLETE,
    CONTINUE,
    DIRECTIONS,
    FLUENCY,
    GENERATE,
    IMPORTED,
    PROMPTS,
    READ,
    SCORES,
    TEXTS,
    CompleteParams,
    ContinueParams,
    GenerateParams,
    ReadParams,
)
from poolbench.steps.steerer import CONTINUATIONS as CONTINUED
from poolbench.word_rules import word_rules
from poolbench_corpora.io import read_manifest
from poolbench_driver.config import ConceptsConfig, corpus_folder
from poolbench_driver.corpora.sources import calibration_step, openings_step, passages_step, prompted_step
from poolbench_driver.imports.steered_texts import ImportedTexts, texts_step
from poolbench_driver.stages.probes import Probes
from poolbench_driver.stages.scope import NULL_BASE, Scope
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.vectors import PooledVectors


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
    concepts: Mapping[str, Mapping[str, str]]  # by concept id, then by entrant or `NULLS`


def plan_scorers(scope: Scope) -> Scorers:
    """Plan training and gate of every scorer.

    Part (b) of the gate reads the model's own continuations of passage halves. If a word rule labelled the corpus, this
    rule also labels the continuations.
    """
    draft, config, budget = Draft(), scope.config, scope.config.budget
    concepts: dict[str, ScorerKeys] = {}
    for concept in scope.scored_concepts:
        test = draft.add_local(passages_step(config, concept, "test"))
        rule = _rule_params(config, concept)
        params = steps.TrainParams(
            concept=concept.id, mode=config.scorer_mode, seed=config.seed, **_base_params(config, concept), **rule
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
        gate_params = steps.GateParams(num_tokens=budget.max_tokens, seed=config.seed, **rule)
        gate = draft.add(steps.GATE, gate_params, gate_inputs, [steps.MEASURES()])[steps.MEASURES()]
        concepts[concept.id] = ScorerKeys(trained[steps.SCORER()], trained[steps.MEASURES()], continuations, gate)
    return Scorers(draft.work, concepts)


def _rule_params(config: ConceptsConfig, concept: Concept) -> dict[str, Any]:
    """Return the version of a concept's word rule, or {} unless the manifest says that it labelled the corpus."""
    rule = word_rules().get(concept.id)
    if rule is None or concept.corpus or config.corpus.source == "planted":
        return {}
    manifest = read_manifest(corpus_folder(config.corpus.source))
    tables = manifest.tables if manifest else {}
    labels = {Path(name).parent.name: facts.labels for name, facts in tables.items()}
    return {"rule": rule.version} if labels.get(concept.id) == rule.summary else {}


def plan_scores(scope: Scope, scorers: Scorers, unsteered: Unsteered, steered: SteeredTexts) -> Scores:
    """Plan to score steered texts by the scorers of their concept, and unsteered texts by all scorers."""
    draft = Draft()
    base = plan_scores_of(draft, scorers, list(scorers.concepts), {UNSTEERED: unsteered.texts.texts})[UNSTEERED]
    concepts: dict[str, dict[str, str]] = {}
    for name, concept_texts in steered.concepts.items():
        scorer_names, concepts[name] = scope.scorers_of(concept_texts.concept), {}
        nulls = {NULLS: concept_texts.texts[NULLS].texts}
        concepts[name] |= plan_scores_of(draft, scorers, scorer_names, nulls)
        for _, entrants in _entrant_batches(scope):
            texts = {strategy: concept_texts.texts[entrant].texts for strategy, entrant in entrants.items()}
            scored = {strategy: concept_texts.scored.get(entrant) for strategy, entrant in entrants.items()}
            scores = plan_scores_of(draft, scorers, scorer_names, texts, scored)
            concepts[name] |= {entrant: scores[strategy] for strategy, entrant in entrants.items()}
    return Scores(draft.work, base, concepts)


def _base_params(config: ConceptsConfig, concept: Concept) -> dict[str, Any]:
    """Return the parameters that identify a scorer's base: name, layers, revision, and place of a published classifier.

    A folder is named by its absolute path, because the service runs elsewhere. The revision of a folder is a hash.
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


def plan_scores_of(
    draft: Draft,
    scorers: Scorers,
    names: Sequence[str],
    texts: Mapping[str, str],
    scored: Mapping[str, str | None] = MappingProxyType({}),
) -> dict[str, str]:
    """Plan one task that scores texts. Return the keys of the scores by name. `scored` names scores that exist."""
    inputs = {steps.SCORERS(name): scorers.concepts[name].scorer for name in names}
    inputs |= {TEXTS(name): key for name, key in texts.items()}
    inputs |= {steps.SCORED(name): key for name, key in scored.items() if key is not None}
    outputs = draft.add(steps.SCORE, steps.ScoreParams(), inputs, [SCORES(name) for name in texts])
    return {name: outputs[SCORES(name)] for name in texts}


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
    """Keys of one concept's null directions, and of its texts by entrant or `NULLS`."""

    concept: Concept
    nulls: str
    texts: Mapping[str, Texts]
    scored: Mapping[str, str] = field(default_factory=dict)  # scores of a part of an entrant's texts


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
    texts = generate(scope, draft, shared, {UNSTEERED: None}, [0.0])
    return Unsteered(draft.work, shared, texts[UNSTEERED])


class PromptedConcept(NamedTuple):
    """Keys of the replies to a concept's instruction and to the neutral instruction, and of their scores."""

    texts: Mapping[str, Texts]  # by `NEUTRAL` and `PROMPTED`
    scores: Mapping[str, str]


@dataclass(frozen=True)
class Prompted(Stage):
    """The prompting baseline by concept id. Empty unless the configuration requests this baseline."""

    concepts: Mapping[str, PromptedConcept]


#: Names of the texts of a chat without and with a concept's instruction.
NEUTRAL, PROMPTED = "neutral", "prompted"


def plan_prompted(scope: Scope, scorers: Scorers) -> Prompted:
    """Plan the replies of an unsteered chat model that is instructed to express each concept, and their scores."""
    draft, budget, concepts = Draft(), scope.config.budget, dict[str, PromptedConcept]()
    for concept in scope.concepts if scope.config.prompted else ():
        texts: dict[str, Texts] = {}
        for name, towards in ((NEUTRAL, None), (PROMPTED, concept)):
            prompts = draft.add_local(prompted_step(budget.opening_set, budget.num_openings, towards))
            texts[name] = unsteered_texts(scope, draft, prompts)
        keys = {name: keys.texts for name, keys in texts.items()}
        concepts[concept.id] = PromptedConcept(texts, plan_scores_of(draft, scorers, [concept.id], keys))
    return Prompted(draft.work, concepts)


def unsteered_texts(scope: Scope, draft: Draft, prompts: str) -> Texts:
    """Plan the unsteered texts of other prompts than the openings."""
    return generate(scope, draft, {PROMPTS(): prompts}, {UNSTEERED: None}, [0.0])[UNSTEERED]


def plan_steering(
    scope: Scope, vectors: PooledVectors, probes: Probes, unsteered: Unsteered, scorers: Scorers
) -> SteeredTexts:
    """Plan the texts of every strategy and of each concept's null directions, at the steering layer.

    The null directions are fitted to permuted labels, on the vectors of one strategy.
    """
    draft, budget, shared = Draft(), scope.config.budget, unsteered.inputs
    base = SplitCell("train", NULL_BASE, scope.steering_layer)
    null_params = NullParams(num_nulls=budget.num_nulls, seed=scope.config.seed)
    concepts: dict[str, ConceptTexts] = {}
    for name, concept_vectors in vectors.concepts.items():
        inputs = {SPLIT_PASSAGES("train"): concept_vectors.passages["train"]}
        inputs[VECTORS(*base)] = concept_vectors.vectors[base]
        nulls = draft.add(NULL_DIRECTIONS, null_params, inputs, [NULLS_ROLE()])[NULLS_ROLE()]
        texts, scored = generate(scope, draft, shared, {NULLS: nulls}, budget.null_strengths), dict[str, str]()
        for direction, entrants in _entrant_batches(scope):
            if scope.imported_texts is not None:
                texts |= _read_texts(scope, draft, scope.imported_texts, concept_vectors.concept, list(entrants))
                continue
            directions = probes.concepts[name].directions
            keys = {strategy: directions[Cell(strategy, scope.steering_layer)] for strategy in entrants}
            steered, scores = plan_along(scope, draft, unsteered, scorers, keys, (direction,), concept_vectors.concept)
            scored |= {entrants[strategy]: key for strategy, key in scores.items()}
            texts |= {entrant: steered[strategy] for strategy, entrant in entrants.items()}
        concepts[name] = ConceptTexts(concept_vectors.concept, nulls, texts, scored)
    return SteeredTexts(draft.work, concepts)


def plan_along(
    scope: Scope,
    draft: Draft,
    unsteered: Unsteered,
    scorers: Scorers,
    directions: Mapping[str, str],
    direction_ids: tuple[str, ...],
    concept: Concept,
) -> tuple[dict[str, Texts], dict[str, str]]:
    """Plan the texts that are steered along some directions of each table, at the budget's strengths.

    If `scope.is_lazy`, the first half of the openings is steered and scored before the second half.

    Returns:
        The keys of the texts by name, and the keys of the scores that are planned with these texts.
    """
    budget, seed, names = scope.config.budget, scope.config.seed, list(directions)
    if not scope.is_lazy:
        return generate(scope, draft, unsteered.inputs, directions, budget.strengths, direction_ids), {}
    openings = [openings_step(budget.opening_set, budget.num_openings, half, seed) for half in (0, 1)]
    halves = [{**unsteered.inputs, PROMPTS(): draft.add_local(step)} for step in openings]
    first = generate(scope, draft, halves[0], directions, budget.strengths, direction_ids)
    texts = {name: keys.texts for name, keys in first.items()}
    # Texts that sensitive scores chose would be restricted too, so sensitive neighbours score later.
    is_open = concept.sensitive or not any(CONCEPTS.get(name).sensitive for name in scope.scorers_of(concept))
    scores = plan_scores_of(draft, scorers, scope.scorers_of(concept) if is_open else [concept.id], texts)
    unsteered_texts = {UNSTEERED: unsteered.texts.texts}
    inputs = {**halves[1], SCORES(UNSTEERED): plan_scores_of(draft, scorers, [concept.id], unsteered_texts)[UNSTEERED]}
    for name, keys in {UNSTEERED: unsteered.texts, **first}.items():
        inputs |= {TEXTS(name): keys.texts, FLUENCY(name): keys.fluency}
    inputs |= {SCORES(name): scores[name] for name in names}
    inputs |= {DIRECTIONS(name): directions[name] for name in names}
    params = CompleteParams(
        **_generation(scope, budget.null_strengths, direction_ids), scorer=concept.id, split_seed=seed
    )
    outputs = draft.add(COMPLETE, params, inputs, [role(name) for name in names for role in (TEXTS, FLUENCY)])
    return {name: Texts(outputs[TEXTS(name)], outputs[FLUENCY(name)]) for name in names}, scores


def _entrant_batches(scope: Scope) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield, for each task of steering or scoring, a direction and the entrants by strategy id, which names roles."""
    steering = scope.config.steering
    for direction, batch in product(steering.directions, scope.strategy_batches):
        yield direction, {strategy: steering.entrant(strategy, direction) for strategy in batch}


def _read_texts(
    scope: Scope, draft: Draft, imported: ImportedTexts, concept: Concept, strategies: Sequence[str]
) -> dict[str, Texts]:
    """Plan one task that reads imported texts of some strategies. Return the keys by strategy."""
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


def generate(
    scope: Scope,
    draft: Draft,
    shared: Keys,
    directions: Mapping[str, str | None],
    strengths: Sequence[float],
    direction_ids: tuple[str, ...] | Literal["all"] = "all",
    **changes: Any,
) -> dict[str, Texts]:
    """Plan one task that steers along each named direction (None: unsteered). Return the keys by name.

    Strengths are in the budget's unit. Options at their default stay unset, so that they do not change keys. `changes`
    holds the parameters that differ from the parameters of the run.
    """
    params = GenerateParams(**_generation(scope, strengths, direction_ids) | changes)
    inputs = {**shared, **{DIRECTIONS(name): key for name, key in directions.items() if key is not None}}
    roles = [role(name) for name in directions for role in (TEXTS, FLUENCY)]
    outputs = draft.add(GENERATE, params, inputs, roles)
    return {name: Texts(outputs[TEXTS(name)], outputs[FLUENCY(name)]) for name in directions}


def _generation(
    scope: Scope, strengths: Sequence[float], direction_ids: tuple[str, ...] | Literal["all"]
) -> dict[str, Any]:
    """Return the parameters of a task that generates texts."""
    budget = scope.config.budget
    return {
        **scope.model_params,
        "layer": scope.steering_layer,
        "strengths": tuple(strengths),
        "max_tokens": budget.max_tokens,
        "alpha_unit": budget.alpha_unit,
        "direction_ids": direction_ids,
        "seed": scope.config.seed,
        **scope.config.steering.changed(),
    }
