"""Stages of the scorers: training, gate, and the scores of steered texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.concepts import Concept
from poolbench.config import folder_revision
from poolbench.steps import scorer as steps
from poolbench.steps.extractor import PASSAGES
from poolbench.steps.steerer import CONTINUATIONS as CONTINUED
from poolbench.steps.steerer import CONTINUE, TEXTS, ContinueParams
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.corpora.sources import passages_step
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.steering import NULLS, UNSTEERED, SteeredTexts, Unsteered


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
