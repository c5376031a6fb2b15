"""Plans D1: vectors to measures, directions and scores, and the directions of nulls and neighbours."""

from __future__ import annotations

from typing import Any

from poolbench.contracts.tasks import Task, step_key
from poolbench.directions import all_directions
from poolbench.pooling.registry import StrategySpec
from poolbench.readouts import get_readout
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
                key = _cell_key(spec, params, part, {**passages, **vectors})
                outputs[f"{part}/{spec.id}/{layer}"] = store[spec.id, layer] = key
        plan.add(Task(kind="prober.probe", inputs=inputs, outputs=outputs, params=params))


def plan_neighbour_directions(plan: Plan, cells: ConceptPlan) -> None:
    """Directions of a concept that is a neighbour only, where only the prober can make vectors of the parts."""
    layer, params = plan.steering_layer, {"concept": cells.concept.id, "seed": plan.config.seed}
    inputs, outputs = {"passages/train": cells.passages["train"]}, {}
    for spec in plan.implemented:
        if spec.readout is not None:
            vectors = {f"train/{spec.id}/{layer}": cells.vectors["train", spec.id, layer]}
            key = step_key("prober.directions", _cell_params(spec, params), {**inputs, **vectors})
            outputs[f"directions/{spec.id}/{layer}"] = cells.directions[spec.id, layer] = key
    if outputs:
        inputs |= {f"train/{name}/{layer}": cells.vectors["train", name, layer] for name, _ in cells.directions}
        plan.add(Task(kind="prober.directions", inputs=inputs, outputs=outputs, params=params))


def _cell_key(spec: StrategySpec, params: dict[str, Any], part: str, inputs: dict[str, str]) -> str:
    return step_key("prober.probe", {**_cell_params(spec, params), "part": part}, inputs)


def _cell_params(spec: StrategySpec, params: dict[str, Any]) -> dict[str, Any]:
    """What enters a cell's keys: another set of directions makes other keys, and another readout where there is one."""
    known = all_directions().values()
    constructions = {direction.id: direction.version for direction in known if direction.construct is not None}
    readout = {} if spec.readout is None else {"readout": get_readout(spec.readout).identity()}
    return {**params, "directions": constructions, **readout}


def plan_null_directions(plan: Plan, cells: ConceptPlan) -> None:
    """Directions of permuted labels, on vectors of one strategy, at the steering layer."""
    layer = plan.steering_layer
    inputs = {
        "passages/train": cells.passages["train"],
        f"train/{NULL_BASE}/{layer}": cells.vectors["train", NULL_BASE, layer],
    }
    params = {"num_nulls": plan.config.budget.num_nulls, "seed": plan.config.seed}
    cells.nulls = plan.add_step("prober.nulls", "nulls", inputs, params)
