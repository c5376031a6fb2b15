"""Stage of annotation, extraction and pooling: passages to vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolbench.concepts import Concept
from poolbench.pooling.registry import StrategySpec
from poolbench.steps import extractor as steps
from poolbench.steps.base import Keys
from poolbench.steps.common import StrategyParam
from poolbench.steps.pooler import ANNOTATE, IDF_PASSAGES, POOL, AnnotateParams, PoolParams
from poolbench.steps.roles import Split, SplitCell
from poolbench_driver.corpora.sources import passages_step
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, Stage


@dataclass(frozen=True)
class ConceptVectors:
    """Keys of one concept's passages, annotations and vectors."""

    concept: Concept
    passages: Mapping[str, str]
    annotations: Mapping[str, str]  # by split; empty for imported activations, whose tokens have no place in the text
    vectors: Mapping[SplitCell, str]  # for strategies that read states, the kept states
    states: Mapping[tuple[Split, int], str]  # by split and layer; kept only on request, or imported


@dataclass(frozen=True)
class Vectors(Stage):
    """Vectors of some concepts, by concept id; `frequencies` is empty where no strategy reads token counts."""

    concepts: Mapping[str, ConceptVectors]
    frequencies: str = ""


def plan_vectors(scope: Scope) -> Vectors:
    """Plan vectors of the measured concepts: both splits, every strategy, all layers."""
    draft = Draft()
    for sae in scope.saes.values():
        if sae.step is not None:
            draft.add_local(sae.step)
    frequencies = _plan_frequencies(scope, draft)
    planner = _Planner(scope, draft, frequencies)
    layers = scope.layers_with_steering
    concepts = {concept.id: planner.plan(concept, ("train", "test"), layers) for concept in scope.concepts}
    return Vectors(draft.done(), concepts, frequencies)


def plan_neighbour_vectors(scope: Scope, measured: Vectors) -> Vectors:
    """Plan train vectors of neighbours that are not measured themselves: D3_rep needs their directions."""
    draft = Draft()
    planner = _Planner(scope, draft, measured.frequencies)
    others = [concept for concept in scope.scored_concepts if concept.id not in measured.concepts]
    concepts = {concept.id: planner.plan(concept, ("train",), [scope.steering_layer]) for concept in others}
    return Vectors(draft.done(), concepts, measured.frequencies)


def _plan_frequencies(scope: Scope, draft: Draft) -> str:
    """Count tokens in the train passages of all concepts, if a strategy needs them."""
    if scope.model.imported or not any(spec.reads_counts for spec in scope.pooled):
        return ""
    inputs = {
        steps.CONCEPT_PASSAGES(concept.id): draft.add_local(passages_step(scope.config, concept, "train"))
        for concept in scope.concepts
    }
    parameters = steps.ReadingParams.model_fields.keys() - {"dtype"}  # tokens have no dtype
    reading = {name: value for name, value in _reading(scope).items() if name in parameters}
    return draft.add(steps.COUNT, steps.ReadingParams(**reading), inputs, [steps.FREQUENCIES()])[steps.FREQUENCIES()]


@dataclass(frozen=True)
class _Planner:
    """Plans the vectors of one concept at a time."""

    scope: Scope
    draft: Draft
    frequencies: str

    def plan(self, concept: Concept, splits: Sequence[Split], layers: Sequence[int]) -> ConceptVectors:
        """Plan one concept. Document frequencies come from the train passages alone."""
        passages = {"train": self._passages(concept, "train")} | {
            split: self._passages(concept, split) for split in splits
        }
        annotations: dict[str, str] = {}
        vectors: dict[SplitCell, str] = {}
        states: dict[tuple[Split, int], str] = {}
        for split in splits:
            inputs: dict[str, str] = {}
            if not self.scope.model.imported:
                annotations[split] = self._annotations(passages[split], passages["train"])
                inputs = {steps.PASSAGES(): passages[split], steps.ANNOTATIONS(): annotations[split]}
            if self.frequencies:
                inputs[steps.FREQUENCIES()] = self.frequencies
            params = None if self.scope.model.imported else extract_params(self.scope, concept.triggers, layers)
            states |= {(split, layer): self._states(concept, split, layer, params, inputs) for layer in layers}
            vectors |= self._split(concept, split, params, inputs, {layer: states[split, layer] for layer in layers})
        return ConceptVectors(concept, passages, annotations, vectors, states)

    def _passages(self, concept: Concept, split: str) -> str:
        return self.draft.add_local(passages_step(self.scope.config, concept, split))

    def _annotations(self, passages: str, train: str) -> str:
        version = self.scope.annotator_version
        params = AnnotateParams(pipeline=self.scope.config.annotator, pipeline_version=version)
        inputs = {steps.PASSAGES(): passages, IDF_PASSAGES(): train}
        return self.draft.add(ANNOTATE, params, inputs, [steps.ANNOTATIONS()])[steps.ANNOTATIONS()]

    def _states(
        self, concept: Concept, split: Split, layer: int, params: steps.ExtractParams | None, inputs: Keys
    ) -> str:
        """Return the key of the states of one split and layer; `params` is None where they are imported."""
        if params is None:
            return self.scope.model.imported[concept.id, split, layer]
        return steps.EXTRACT.key(steps.STATES(layer), params, inputs)

    def _split(
        self,
        concept: Concept,
        split: Split,
        params: steps.ExtractParams | None,
        inputs: Keys,
        states_of: Mapping[int, str],
    ) -> Mapping[SplitCell, str]:
        """Plan one split: from kept states where they suffice, else by the extractor in one pass over the model."""
        vectors: dict[SplitCell, str] = {}
        extracted: dict[str, str] = {}
        for layer, states in states_of.items():
            if params is None:
                keys = self._imported_keys(concept, layer, states)
            else:
                keys = {
                    spec: steps.EXTRACT.key(steps.VECTORS(spec.id, layer), params, inputs) for spec in self.scope.pooled
                }
            served = {spec: key for spec, key in keys.items() if self._serves(states, spec, key)}
            if served:
                self._pool(concept, layer, states, served, inputs)
            extracted |= {steps.VECTORS(spec.id, layer): key for spec, key in keys.items() if spec not in served}
            vectors |= {SplitCell(split, spec.id, layer): key for spec, key in keys.items()}
            vectors |= {SplitCell(split, spec.id, layer): states for spec in self.scope.state_readers}
            if self.scope.keeps_states and params is not None:
                extracted[steps.STATES(layer)] = states
        if params is not None and extracted:
            self.draft.add(steps.EXTRACT, params, inputs, extracted)
        return vectors

    def _imported_keys(self, concept: Concept, layer: int, states: str) -> dict[StrategySpec, str]:
        params = steps.ImportedParams(
            **_reading(self.scope), strategies=_strategies(concept.triggers, self.scope.pooled)
        )
        inputs = {steps.STATES(layer): states}
        return {
            spec: steps.IMPORTED_VECTORS.key(steps.VECTORS(spec.id, layer), params, inputs)
            for spec in self.scope.pooled
        }

    def _serves(self, states: str, spec: StrategySpec, vectors: str) -> bool:
        """Return whether kept states give these vectors: always if there is no model besides them."""
        missing = states in self.scope.present and vectors not in self.scope.present
        return bool(self.scope.model.imported) or (missing and spec.served_by_kept_states)

    def _pool(
        self, concept: Concept, layer: int, states: str, served: Mapping[StrategySpec, str], inputs: Keys
    ) -> None:
        """Plan vectors from the kept states of one layer; the model is not loaded."""
        read = {steps.STATES(layer): states}
        if steps.ANNOTATIONS() in inputs and any(spec.reads_annotations for spec in served):
            read[steps.ANNOTATIONS()] = inputs[steps.ANNOTATIONS()]
        outputs = {steps.VECTORS(spec.id, layer): key for spec, key in served.items()}
        params = PoolParams(strategies=_strategies(concept.triggers, served), **self.scope.config.sink_settings)
        self.draft.add(POOL, params, read, outputs)


def extract_params(scope: Scope, triggers: Sequence[str], layers: Sequence[int]) -> steps.ExtractParams:
    """Return how passages are read: by all strategies of a run; `triggers` are the words of their concept."""
    return steps.ExtractParams(
        **_reading(scope),
        strategies=_strategies(triggers, scope.pooled),
        layers=list(layers),
        keep_activations=scope.keeps_states,
    )


def _reading(scope: Scope) -> dict[str, Any]:
    """Return the model and how it reads its input, which every key of vectors and states depends on."""
    return {**scope.model_params, "include_bos": scope.config.include_bos, **scope.config.sink_settings}


def _strategies(triggers: Sequence[str], specs: Iterable[StrategySpec]) -> list[StrategyParam]:
    return [StrategyParam(id=spec.id, params=spec.resolve(spec.params_for(triggers))) for spec in specs]
