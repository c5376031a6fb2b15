"""Plans annotation, extraction and pooling: passages to vectors."""

from __future__ import annotations

from collections.abc import Sequence

from poolbench.contracts.tasks import Task, step_key
from poolbench_driver.plan.job import ConceptPlan, Plan, scored_concepts


def plan_vectors(plan: Plan, cells: ConceptPlan, splits: Sequence[str], layers: Sequence[int]) -> None:
    """Vectors of every strategy at the layers; document frequencies come from the train passages alone."""
    cells.passages["train"] = plan.add_passages(cells.concept, "train")
    for split in splits:
        cells.passages[split] = plan.add_passages(cells.concept, split)
        inputs = {"passages": cells.passages[split], "idf_passages": cells.passages["train"]}
        cells.annotations[split] = plan.add_step("pooler.annotate", "annotations", inputs, plan.annotator)
        _plan_extraction(plan, cells, split, layers)


def plan_neighbour_vectors(plan: Plan) -> None:
    """Train vectors of neighbours that are not measured themselves: D3_rep needs their directions."""
    for concept in scored_concepts(plan):
        if concept.id not in plan.concepts:
            plan.neighbours[concept.id] = cells = ConceptPlan(concept)
            plan_vectors(plan, cells, ("train",), [plan.steering_layer])


def _plan_extraction(plan: Plan, cells: ConceptPlan, split: str, layers: Sequence[int]) -> None:
    inputs = {"passages": cells.passages[split], "annotations": cells.annotations[split]}
    base = {**plan.model.params, "include_bos": plan.config.include_bos}
    triggers = cells.concept.triggers
    outputs: dict[str, str] = {}
    for spec in plan.pooled:
        # Annotations enter the keys of the strategies that read them, and no others: another spaCy pipeline
        # recomputes no more than it must.
        used = inputs if spec.reads_annotations else {"passages": inputs["passages"]}
        identity = spec.identity(spec.params_for(triggers))
        for layer in layers:
            key = step_key("extractor.extract", {**base, "strategy": identity, "layer": layer}, used)
            outputs[f"{spec.id}/{layer}"] = cells.vectors[split, spec.id, layer] = key
    if plan.config.keep_activations:
        for layer in layers:
            states = step_key("extractor.states", {**base, "layer": layer}, {"passages": inputs["passages"]})
            outputs[f"states/{layer}"] = states
    strategies = [{"id": spec.id, "params": spec.resolve(spec.params_for(triggers))} for spec in plan.pooled]
    params = {
        **base,
        "strategies": strategies,
        "layers": list(layers),
        "keep_activations": plan.config.keep_activations,
    }
    plan.add(Task(kind="extractor.extract", inputs=inputs, outputs=outputs, params=params))
