"""Plans annotation, extraction and pooling: passages to vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from poolbench.contracts.tasks import Task, step_key
from poolbench.pooling.registry import StrategySpec
from poolbench_driver.plan.plan import ConceptPlan, Plan, scored_concepts


def plan_frequencies(plan: Plan) -> None:
    """How often tokens occur in the train passages of the run's concepts, where a strategy asks for it."""
    if plan.model.imported or not any(spec.reads_counts for spec in plan.pooled):
        return
    inputs = {
        f"passages/{cells.concept.id}": plan.add_passages(cells.concept, "train") for cells in plan.concepts.values()
    }
    params = {name: value for name, value in _reading(plan).items() if name != "dtype"}  # tokens have none
    plan.frequencies = plan.add_step("extractor.count", "frequencies", inputs, params)


def plan_vectors(plan: Plan, cells: ConceptPlan, splits: Sequence[str], layers: Sequence[int]) -> None:
    """Vectors of every strategy at the layers; document frequencies come from the train passages alone."""
    cells.passages["train"] = plan.add_passages(cells.concept, "train")
    for split in splits:
        cells.passages[split] = plan.add_passages(cells.concept, split)
        inputs = {"passages": cells.passages[split], "idf_passages": cells.passages["train"]}
        if not plan.model.imported:  # nobody knows where imported tokens lie in the text
            cells.annotations[split] = plan.add_step("pooler.annotate", "annotations", inputs, plan.annotator)
        _plan_split(plan, cells, split, layers)


def plan_neighbour_vectors(plan: Plan) -> None:
    """Train vectors of neighbours that are not measured themselves: D3_rep needs their directions."""
    for concept in scored_concepts(plan):
        if concept.id not in plan.concepts:
            plan.neighbours[concept.id] = cells = ConceptPlan(concept)
            plan_vectors(plan, cells, ("train",), [plan.steering_layer])


def _plan_split(plan: Plan, cells: ConceptPlan, split: str, layers: Sequence[int]) -> None:
    """Vectors of one split: from kept states where they serve, else by the extractor in one pass over the model."""
    extracted: dict[str, str] = {}
    for layer in layers:
        states, pooled = _states_key(plan, cells, split, layer), []
        for spec in plan.pooled:
            key = cells.vectors[split, spec.id, layer] = _vectors_key(plan, cells, split, spec, layer)
            if _serves(plan, states, spec, key):
                pooled.append(spec)
            else:
                extracted[f"{spec.id}/{layer}"] = key
        if pooled:
            _plan_pooling(plan, cells, split, layer, pooled)
        cells.vectors |= {(split, spec.id, layer): states for spec in plan.state_readers}
        if plan.keeps_states and not plan.model.imported:
            extracted[f"states/{layer}"] = states
    if extracted:
        _plan_extraction(plan, cells, split, layers, extracted)


def _plan_extraction(
    plan: Plan, cells: ConceptPlan, split: str, layers: Sequence[int], outputs: dict[str, str]
) -> None:
    params = {
        **_reading(plan),
        "strategies": _strategies(cells, plan.pooled),
        "layers": list(layers),
        "keep_activations": plan.keeps_states,
    }
    inputs = {"passages": cells.passages[split], "annotations": cells.annotations[split]}
    if plan.frequencies:
        inputs["frequencies"] = plan.frequencies
    plan.add(Task(kind="extractor.extract", inputs=inputs, outputs=outputs, params=params))


def _plan_pooling(plan: Plan, cells: ConceptPlan, split: str, layer: int, specs: Sequence[StrategySpec]) -> None:
    """Vectors from the kept states of one layer; the model is not loaded."""
    inputs = {f"states/{layer}": _states_key(plan, cells, split, layer)}
    if split in cells.annotations and any(spec.reads_annotations for spec in specs):
        inputs["annotations"] = cells.annotations[split]
    outputs = {f"{spec.id}/{layer}": cells.vectors[split, spec.id, layer] for spec in specs}
    params = {"strategies": _strategies(cells, specs)}
    plan.add(Task(kind="pooler.pool", inputs=inputs, outputs=outputs, params=params))


def _serves(plan: Plan, states: str, spec: StrategySpec, vectors: str) -> bool:
    """Whether kept states give these vectors: always where they are all there is of a model."""
    missing = states in plan.present and vectors not in plan.present
    return bool(plan.model.imported) or (missing and spec.served_by_kept_states)


def _vectors_key(plan: Plan, cells: ConceptPlan, split: str, spec: StrategySpec, layer: int) -> str:
    """The key of vectors, whoever makes them.

    Annotations and counts enter the keys of the strategies that read them, and no others: another spaCy pipeline, or
    another concept in the run, recomputes no more than it must.
    """
    if plan.model.imported:
        inputs = {"states": _states_key(plan, cells, split, layer)}
    else:
        inputs = {"passages": cells.passages[split]}
        if spec.reads_annotations:
            inputs["annotations"] = cells.annotations[split]
        if spec.reads_counts:
            inputs["frequencies"] = plan.frequencies
    identity = spec.identity(spec.params_for(cells.concept.triggers))
    return step_key("extractor.extract", {**_reading(plan), "strategy": identity, "layer": layer}, inputs)


def _states_key(plan: Plan, cells: ConceptPlan, split: str, layer: int) -> str:
    if plan.model.imported:
        return plan.model.imported[cells.concept.id, split, layer]
    return step_key("extractor.states", {**_reading(plan), "layer": layer}, {"passages": cells.passages[split]})


def _reading(plan: Plan) -> dict[str, Any]:
    """The model and how it reads its input: what every key of vectors and states depends on."""
    return {**plan.model.params, "include_bos": plan.config.include_bos}


def _strategies(cells: ConceptPlan, specs: Iterable[StrategySpec]) -> list[dict[str, Any]]:
    triggers = cells.concept.triggers
    return [{"id": spec.id, "params": spec.resolve(spec.params_for(triggers))} for spec in specs]
