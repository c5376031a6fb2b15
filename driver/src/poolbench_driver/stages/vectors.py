"""Stages of extraction: annotation, vectors of passages, and the same texts before and after fine-tunes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from poolbench.concepts import Concept
from poolbench.pooling.registry import StrategySpec
from poolbench.steps import extractor as steps
from poolbench.steps.base import Keys, StrategyParam
from poolbench.steps.extractor import EXTRACT, PASSAGES, VECTORS, ChangeParams, ExtractParams
from poolbench.steps.pooler import ANNOTATE, IDF_PASSAGES, POOL, AnnotateParams, PoolParams
from poolbench.steps.roles import Split, SplitCell
from poolbench_driver.corpora.sources import passages_step
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, Stage


class ModelState(NamedTuple):
    """A state of a model: unchanged, fine-tuned, or changed at random by as much as a fine-tune changes it."""

    tune: str | None = None
    random_seed: int | None = None


def read_states(
    draft: Draft,
    texts: str,
    reading: Mapping[str, Any],
    layers: Sequence[int],
    changes: Mapping[ModelState, ChangeParams | None],
    strategy: str = "A1_mean",
) -> dict[ModelState, dict[int, str]]:
    """Plan the vectors of texts for every state of a model. Return the keys of the vectors by state and layer.

    Args:
        texts: Key of a table of passages. A column `span`, if present, says which characters are pooled.
        reading: Parameters that name the model and say how texts are read.
        changes: Change of the weights for each state, or None for unchanged weights.
    """
    keys_by_state: dict[ModelState, dict[int, str]] = {}
    for state, change in changes.items():
        changed: dict[str, Any] = {} if change is None else {"change": change}
        params = ExtractParams(**reading, strategies=[StrategyParam(id=strategy)], layers=list(layers), **changed)
        roles = {layer: VECTORS(strategy, layer) for layer in layers}
        outputs = draft.add(EXTRACT, params, {PASSAGES(): texts}, roles.values())
        keys_by_state[state] = {layer: outputs[role] for layer, role in roles.items()}
    return keys_by_state


@dataclass(frozen=True)
class ConceptVectors:
    """Keys of one concept's passages, annotations and vectors."""

    concept: Concept
    passages: Mapping[str, str]
    annotations: Mapping[str, str]  # by split; empty for imported activations, whose tokens have no place in the text
    vectors: Mapping[SplitCell, str]  # for strategies that read states, the kept states
    states: Mapping[tuple[Split, int], str]  # by split and layer; kept only on request, or imported


@dataclass(frozen=True)
class PooledVectors(Stage):
    """Vectors of some concepts, by concept id. `frequencies` is empty if no strategy reads token counts."""

    concepts: Mapping[str, ConceptVectors]
    frequencies: str = ""


def plan_vectors(scope: Scope) -> PooledVectors:
    """Plan vectors of the measured concepts: both splits, every strategy, all layers.

    If a strategy reads token counts, tokens are counted in the train passages of all concepts.
    """
    draft, frequencies = Draft(), ""
    for sae in scope.saes.values():
        if sae.step is not None:
            draft.add_local(sae.step)
    if not scope.model.imported and any(spec.reads_counts for spec in scope.pooled):
        inputs = {
            steps.CONCEPT_PASSAGES(concept.id): draft.add_local(passages_step(scope.config, concept, "train"))
            for concept in scope.concepts
        }
        parameters = steps.ReadingParams.model_fields.keys() - {"dtype"}  # tokens have no dtype
        reading = {name: value for name, value in scope.reading_params.items() if name in parameters}
        outputs = draft.add(steps.COUNT, steps.ReadingParams(**reading), inputs, [steps.FREQUENCIES()])
        frequencies = outputs[steps.FREQUENCIES()]
    planner = _Planner(scope, draft, frequencies)
    layers = scope.layers_with_steering
    concepts = {concept.id: planner.plan(concept, ("train", "test"), layers) for concept in scope.concepts}
    return PooledVectors(draft.work, concepts, frequencies)


def plan_neighbour_vectors(scope: Scope, measured: PooledVectors) -> PooledVectors:
    """Plan train vectors of neighbours that are not measured themselves: D3_rep needs their directions."""
    draft = Draft()
    planner = _Planner(scope, draft, measured.frequencies)
    others = [concept for concept in scope.scored_concepts if concept.id not in measured.concepts]
    concepts = {concept.id: planner.plan(concept, ("train",), [scope.steering_layer]) for concept in others}
    return PooledVectors(draft.work, concepts, measured.frequencies)


@dataclass(frozen=True)
class _Planner:
    """Plans the vectors of one concept at a time."""

    scope: Scope
    draft: Draft
    frequencies: str

    def plan(self, concept: Concept, splits: Sequence[Split], layers: Sequence[int]) -> ConceptVectors:
        """Plan one concept. Document frequencies come from the train passages alone.

        The extractor reads each split in one pass over the model. Layers whose stored states suffice are not read.
        """
        scope, draft = self.scope, self.draft
        passages: dict[str, str] = {}
        for name in ("train", *splits):
            passages[name] = draft.add_local(passages_step(scope.config, concept, name))
        annotations: dict[str, str] = {}
        vectors: dict[SplitCell, str] = {}
        states: dict[tuple[Split, int], str] = {}
        for split in splits:
            inputs: dict[str, str] = {}
            params = None  # of imported states, which no model is needed for
            if not scope.model.imported:
                annotate = AnnotateParams(pipeline=scope.config.annotator, pipeline_version=scope.annotator_version)
                texts = {steps.PASSAGES(): passages[split], IDF_PASSAGES(): passages["train"]}
                annotations |= {split: draft.add(ANNOTATE, annotate, texts, [steps.ANNOTATIONS()])[steps.ANNOTATIONS()]}
                inputs = {steps.PASSAGES(): passages[split], steps.ANNOTATIONS(): annotations[split]}
                params = extract_params(scope, concept.triggers, layers)
            if self.frequencies:
                inputs[steps.FREQUENCIES()] = self.frequencies
            extracted: dict[str, str] = {}
            for layer in layers:
                if params is None:
                    states_key = scope.model.imported[concept.id, split, layer]
                else:
                    states_key = steps.EXTRACT.key(steps.STATES(layer), params, inputs)
                keys = self._keys(concept, layer, states_key, params, inputs)
                pooled = self._pool(concept, layer, states_key, keys, inputs)
                extracted |= {steps.VECTORS(spec.id, layer): key for spec, key in keys.items() if spec not in pooled}
                if params is not None and scope.keeps_states:
                    extracted[steps.STATES(layer)] = states_key
                states[split, layer] = states_key
                vectors |= {SplitCell(split, spec.id, layer): key for spec, key in keys.items()}
                vectors |= {SplitCell(split, spec.id, layer): states_key for spec in scope.state_readers}
            if params is not None and extracted:
                draft.add(steps.EXTRACT, params, inputs, extracted)
        return ConceptVectors(concept, passages, annotations, vectors, states)

    def _keys(
        self, concept: Concept, layer: int, states: str, params: steps.ExtractParams | None, inputs: Keys
    ) -> dict[StrategySpec, str]:
        """Return the keys of the vectors of one layer. `params` is None if the states are imported."""
        roles = {spec: steps.VECTORS(spec.id, layer) for spec in self.scope.pooled}
        if params is not None:
            return {spec: steps.EXTRACT.key(role, params, inputs) for spec, role in roles.items()}
        strategies = _strategies(concept.triggers, self.scope.pooled)
        imported = steps.ImportedParams(**self.scope.reading_params, strategies=strategies)
        read = {steps.STATES(layer): states}
        return {spec: steps.IMPORTED_VECTORS.key(role, imported, read) for spec, role in roles.items()}

    def _pool(
        self, concept: Concept, layer: int, states: str, keys: Mapping[StrategySpec, str], inputs: Keys
    ) -> Mapping[StrategySpec, str]:
        """Plan the vectors that are pooled from the stored states of one layer, without the model. Return their keys.

        If states are imported, all vectors are planned. Otherwise, only missing vectors of stored states are planned.
        """
        present, served = self.scope.present, dict(keys)
        if not self.scope.model.imported:
            served = {
                spec: key
                for spec, key in keys.items()
                if states in present and key not in present and spec.served_by_kept_states
            }
        if served:
            read = {steps.STATES(layer): states}
            if steps.ANNOTATIONS() in inputs and any(spec.reads_annotations for spec in served):
                read[steps.ANNOTATIONS()] = inputs[steps.ANNOTATIONS()]
            outputs = {steps.VECTORS(spec.id, layer): key for spec, key in served.items()}
            params = PoolParams(strategies=_strategies(concept.triggers, served), **self.scope.config.sink_settings)
            self.draft.add(POOL, params, read, outputs)
        return served


def extract_params(scope: Scope, triggers: Sequence[str], layers: Sequence[int]) -> steps.ExtractParams:
    """Return the parameters for reading passages by all strategies of a run. `triggers` are words of the concept."""
    return steps.ExtractParams(
        **scope.reading_params,
        strategies=_strategies(triggers, scope.pooled),
        layers=list(layers),
        keep_activations=scope.keeps_states,
    )


def _strategies(triggers: Sequence[str], specs: Iterable[StrategySpec]) -> list[StrategyParam]:
    return [StrategyParam(id=spec.id, params=spec.keyed_params(spec.params_for(triggers))) for spec in specs]
