"""Stages of D1: vectors to measures, directions and scores of passages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from poolbench.concepts import Concept
from poolbench.pooling.registry import StrategySpec
from poolbench.steps import prober as steps
from poolbench.steps.base import NoParams, Step
from poolbench.steps.roles import Cell, Role, Split, SplitCell
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.vectors import ConceptVectors, PooledVectors

SPLITS: tuple[Split, ...] = ("train", "test")


@dataclass(frozen=True)
class Components(Stage):
    """Common components by strategy and layer, for the strategies that lose theirs."""

    keys: Mapping[Cell, str]


@dataclass(frozen=True)
class ConceptProbes:
    """Keys of the D1 of one concept.

    `published` and `nested` (layer chosen inside the folds) are empty unless requested.
    """

    concept: Concept
    measures: Mapping[Cell, str]
    directions: Mapping[Cell, str]
    scores: Mapping[Cell, str]
    published: Mapping[Cell, str]
    nested: Mapping[str, str]


@dataclass(frozen=True)
class Probes(Stage):
    """D1 of some concepts, by concept id."""

    concepts: Mapping[str, ConceptProbes]


@dataclass(frozen=True)
class Directions(Stage):
    """Directions at the steering layer of concepts that are not measured, by concept id and cell."""

    concepts: Mapping[str, Mapping[Cell, str]]


def plan_components(scope: Scope, vectors: PooledVectors) -> Components:
    """Plan the common component of the train vectors of all concepts, for the strategies that lose theirs."""
    draft = Draft()
    keys: dict[Cell, str] = {}
    for spec, layer in product(scope.strategies, scope.layers_with_steering):
        if spec.common_component:
            of = SplitCell("train", spec.id, layer)
            inputs = {
                steps.CONCEPT_VECTORS(name): concept_vectors.vectors[of]
                for name, concept_vectors in vectors.concepts.items()
            }
            outputs = draft.add(steps.COMPONENT_OF_ALL, NoParams(), inputs, [steps.COMMON_COMPONENT()])
            keys[of.cell] = outputs[steps.COMMON_COMPONENT()]
    return Components(draft.work, keys)


def plan_probes(scope: Scope, vectors: PooledVectors, components: Components) -> Probes:
    """Plan D1 of every concept, strategy and layer, and the further kinds of D1 that the configuration requests."""
    draft = Draft()
    concepts = {
        name: _Planner(scope, draft, concept_vectors, components).plan()
        for name, concept_vectors in vectors.concepts.items()
    }
    return Probes(draft.work, concepts)


def plan_neighbour_directions(scope: Scope, vectors: PooledVectors, components: Components) -> Directions:
    """Plan the directions of concepts that are neighbours only, at the steering layer, from the train split."""
    draft, directions = Draft(), dict[str, Mapping[Cell, str]]()
    for name, concept_vectors in vectors.concepts.items():
        params = steps.ProbeParams(concept=name, seed=scope.config.seed, **scope.config.sink_settings)
        planner = _Planner(scope, draft, concept_vectors, components)
        directions[name] = planner.each(
            steps.CONCEPT_DIRECTIONS, params, steps.DIRECTIONS, [scope.steering_layer], ("train",)
        )
    return Directions(draft.work, directions)


@dataclass(frozen=True)
class _Planner:
    """Plans the probes of one concept; one task for each layer and group of strategies."""

    scope: Scope
    draft: Draft
    vectors: ConceptVectors
    components: Components

    def plan(self) -> ConceptProbes:
        """Plan all of the concept's D1: measures, directions and scores of every strategy at every layer.

        If requested, also plan D1 by the reference's own definition, which fixes folds and seeds, and D1 at the layer
        that each training fold chooses.
        """
        scope, concept, config = self.scope, self.vectors.concept, self.scope.config
        parts: dict[str, dict[Cell, str]] = {part: {} for part in steps.PARTS}
        for layer, specs in product(scope.layers_with_steering, scope.strategy_groups):
            cells = [Cell(spec.id, layer) for spec in specs]
            inputs = self._inputs(specs, [layer])
            if (sae := scope.saes.get(layer)) is not None:
                inputs[steps.SAE(layer)] = sae.key
            roles = [role(*cell) for cell in cells for role in steps.PARTS.values()]
            outputs = self.draft.add(steps.PROBE, probe_params(scope, concept.id, layer), inputs, roles)
            for cell, part in product(cells, steps.PARTS):
                parts[part][cell] = outputs[steps.PARTS[part](*cell)]
        published: dict[Cell, str] = {}
        if config.protocol == "published":
            params = steps.ProbeParams(
                concept=concept.id,
                num_bootstrap=config.budget.num_bootstrap,
                protocol="published",
                **config.sink_settings,
            )
            published = self.each(steps.PROBE, params, steps.MEASURES, scope.layers)
        nested: dict[str, str] = {}
        if config.layer_choice == "nested" and len(scope.layers) > 1:
            for specs in scope.strategy_groups:
                names = {spec.id: steps.NESTED_MEASURES(spec.id) for spec in specs}
                inputs = self._inputs(specs, scope.layers)
                outputs = self.draft.add(steps.LAYERS, probe_params(scope, concept.id), inputs, names.values())
                nested |= {strategy: outputs[name] for strategy, name in names.items()}
        return ConceptProbes(concept, **parts, published=published, nested=nested)

    def each(
        self,
        step: Step[steps.ProbeParams],
        params: steps.ProbeParams,
        role: Role[Cell],
        layers: Sequence[int],
        splits: Sequence[Split] = SPLITS,
    ) -> dict[Cell, str]:
        """Plan one output of a step for every strategy and layer."""
        keys: dict[Cell, str] = {}
        for layer, specs in product(layers, self.scope.strategy_groups):
            roles = {Cell(spec.id, layer): role(spec.id, layer) for spec in specs}
            outputs = self.draft.add(step, params, self._inputs(specs, [layer], splits), roles.values())
            keys |= {cell: outputs[name] for cell, name in roles.items()}
        return keys

    def _inputs(
        self, specs: Iterable[StrategySpec], layers: Sequence[int], splits: Sequence[Split] = SPLITS
    ) -> dict[str, str]:
        """Return passages and vectors by role, and the common components to remove from them."""
        inputs = {steps.PASSAGES(split): self.vectors.passages[split] for split in splits}
        for spec, layer in product(specs, layers):
            for split in splits:
                inputs[steps.VECTORS(split, spec.id, layer)] = self.vectors.vectors[SplitCell(split, spec.id, layer)]
            if spec.common_component:
                inputs[steps.COMPONENT(spec.id, layer)] = self.components.keys[Cell(spec.id, layer)]
        return inputs


def probe_params(scope: Scope, concept: str, layer: int | None = None) -> steps.ProbeParams:
    """Return the parameters of D1. Settings at their default stay unset, so that they do not enter the keys."""
    config, sae = scope.config, None if layer is None else scope.saes.get(layer)
    extra = {"fold_seeds": config.fold_seeds, **config.sink_settings} if config.fold_seeds else config.sink_settings
    if sae is not None:
        extra["sae_features"] = sae.num_features
    if config.hidden is not None and layer is not None:  # layers are chosen by the linear probe
        extra["hidden"] = config.hidden
    return steps.ProbeParams(
        concept=concept, num_bootstrap=config.budget.num_bootstrap, seed=config.seed, folds=5, **extra
    )
