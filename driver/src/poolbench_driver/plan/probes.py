"""Plans D1: vectors to measures, directions and scores, and the null directions."""

from __future__ import annotations

from typing import Any

from poolbench.contracts.tasks import Task, step_key
from poolbench.directions import all_directions
from poolbench_driver.plan.job import NULL_BASE, ConceptPlan, Plan

#: What a cell's probing yields, each an artifact of its own.
PARTS = ("measures", "directions", "scores")


def plan_probes(plan: Plan, cells: ConceptPlan) -> None:
    """D1 of every strategy at every layer, a task a layer."""
    params = {
        "concept": cells.concept.id,
        "seed": plan.config.seed,
        "folds": 5,
        "num_bootstrap": plan.config.budget.num_bootstrap,
    }
    stores = dict(zip(PARTS, (cells.measures, cells.directions, cells.probe_scores), strict=True))
    passages = {f"passages/{split}": cells.passages[split] for split in ("train", "test")}
    for layer in plan.layers_with_steering():
        inputs, outputs = dict(passages), {}
        for spec in plan.implemented:
            vectors = {f"{s}/{spec.id}/{layer}": cells.vectors[s, spec.id, layer] for s in ("train", "test")}
            inputs |= vectors
            for part, store in stores.items():
                key = _cell_key(params, part, {**passages, **vectors})
                outputs[f"{part}/{spec.id}/{layer}"] = store[spec.id, layer] = key
        plan.add(Task(kind="prober.probe", inputs=inputs, outputs=outputs, params=params))


def _cell_key(params: dict[str, Any], part: str, inputs: dict[str, str]) -> str:
    """The key of one part of a cell; a new or changed direction construction makes another one."""
    known = all_directions().values()
    constructions = {spec.id: spec.version for spec in known if spec.construct is not None}
    return step_key("prober.probe", {**params, "part": part, "directions": constructions}, inputs)


def plan_null_directions(plan: Plan, cells: ConceptPlan) -> None:
    """Directions of permuted labels, on vectors of one strategy, at the steering layer."""
    layer = plan.steering_layer
    inputs = {
        "passages/train": cells.passages["train"],
        f"train/{NULL_BASE}/{layer}": cells.vectors["train", NULL_BASE, layer],
    }
    params = {"num_nulls": plan.config.budget.num_nulls, "seed": plan.config.seed}
    cells.nulls = plan.add_step("prober.nulls", "nulls", inputs, params)
