"""Plans D1: vectors to measures, directions and scores, and the directions of nulls and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from poolbench.contracts.tasks import Task, step_key
from poolbench.directions import all_directions, implemented_directions
from poolbench.pooling.registry import StrategySpec
from poolbench.readouts import get_readout
from poolbench_driver.plan.plan import NULL_BASE, ConceptPlan, Plan

#: What a cell's probing yields, each an artifact of its own.
PARTS = ("measures", "directions", "scores")
#: Parameters that directions and scores of passages do not depend on.
MEASURED_BY = ("num_bootstrap", "fold_seeds")


def plan_probes(plan: Plan, cells: ConceptPlan) -> None:
    """D1 of every strategy at every layer, a task a layer and what it waits for."""
    stores = dict(zip(PARTS, (cells.measures, cells.directions, cells.probe_scores), strict=True))
    passages = {f"passages/{split}": cells.passages[split] for split in ("train", "test")}
    for layer, specs in product(plan.layers_with_steering(), _by_what_they_wait_for(plan)):
        params, sae = _probe_params(plan, cells) | _sae_params(plan, layer), _sae_input(plan, layer)
        inputs, outputs = {**passages, **sae}, {}
        for spec in specs:
            vectors = {**_cell_inputs(plan, cells, ("train", "test"), spec, layer), **sae}
            inputs |= vectors
            for part, store in stores.items():
                read = _read_by(part, {**passages, **vectors})
                key = _cell_key(spec, _params_of(part, params), part, read)
                outputs[f"{part}/{spec.id}/{layer}"] = store[spec.id, layer] = key
        plan.add(Task(kind="prober.probe", inputs=inputs, outputs=outputs, params=params))


def _params_of(part: str, params: dict[str, Any]) -> dict[str, Any]:
    """What a part depends on: resamples and further folds change measures alone, and no text is steered anew."""
    return {name: value for name, value in params.items() if part == "measures" or name not in MEASURED_BY}


def _read_by(part: str, inputs: dict[str, str]) -> dict[str, str]:
    """What a part is made from: directions come from the train split."""
    if part != "directions":
        return inputs
    return {role: key for role, key in inputs.items() if role != "passages/test" and not role.startswith("test/")}


def plan_published_probes(plan: Plan, cells: ConceptPlan) -> None:
    """D1 by the reference's own definition, which fixes folds and seeds itself, where the configuration asks for it."""
    if plan.config.protocol != "published":
        return
    num_bootstrap = plan.config.budget.num_bootstrap
    params = {"concept": cells.concept.id, "num_bootstrap": num_bootstrap, "protocol": "published"}
    passages = {f"passages/{split}": cells.passages[split] for split in ("train", "test")}
    for layer, specs in product(plan.layers, _by_what_they_wait_for(plan)):
        inputs, outputs = dict(passages), {}
        for spec in specs:
            read = {"passages/train": passages["passages/train"], **_cell_inputs(plan, cells, ("train",), spec, layer)}
            inputs |= _cell_inputs(plan, cells, ("train", "test"), spec, layer)
            key = _cell_key(spec, params, "measures", read)
            outputs[f"measures/{spec.id}/{layer}"] = cells.published[spec.id, layer] = key
        plan.add(Task(kind="prober.probe", inputs=inputs, outputs=outputs, params=params))


def plan_nested_layers(plan: Plan, cells: ConceptPlan) -> None:
    """D1 at the layer that each training fold chooses, where the configuration asks for it; a task a concept."""
    if plan.config.layer_choice != "nested" or len(plan.layers) < 2:
        return
    params = _probe_params(plan, cells)
    passages = {f"passages/{split}": cells.passages[split] for split in ("train", "test")}
    for specs in _by_what_they_wait_for(plan):
        inputs, outputs = dict(passages), {}
        for spec in specs:
            found = [_cell_inputs(plan, cells, ("train", "test"), spec, layer) for layer in plan.layers]
            vectors = {role: key for each in found for role, key in each.items()}
            inputs |= vectors
            readout = {} if spec.readout is None else {"readout": get_readout(spec.readout).identity()}
            key = step_key("prober.layers", {**params, **readout}, {**passages, **vectors})
            outputs[f"measures/{spec.id}"] = cells.nested[spec.id] = key
        plan.add(Task(kind="prober.layers", inputs=inputs, outputs=outputs, params=params))


def _probe_params(plan: Plan, cells: ConceptPlan) -> dict[str, Any]:
    """What D1 depends on beside its inputs."""
    seeds = {"fold_seeds": list(plan.config.fold_seeds)} if plan.config.fold_seeds else {}
    return {
        "concept": cells.concept.id,
        "num_bootstrap": plan.config.budget.num_bootstrap,
        "seed": plan.config.seed,
        "folds": 5,
        **seeds,
    }


def _sae_input(plan: Plan, layer: int) -> dict[str, str]:
    return {f"sae/{layer}": plan.saes[layer][0]} if layer in plan.saes else {}


def _sae_params(plan: Plan, layer: int) -> dict[str, Any]:
    return {"sae_features": plan.saes[layer][1]} if layer in plan.saes else {}


def plan_components(plan: Plan) -> None:
    """The common component of the run's train vectors at each layer, for the strategies that are rid of it."""
    for spec, layer in product(plan.implemented, plan.layers_with_steering()):
        if spec.common_component:
            inputs = {f"train/{name}": cells.vectors["train", spec.id, layer] for name, cells in plan.concepts.items()}
            plan.components[spec.id, layer] = plan.add_step("prober.component", "component", inputs, {})


def _by_what_they_wait_for(plan: Plan) -> list[list[StrategySpec]]:
    """Strategies that need one concept alone, and those that need all: a concept that fails stops no other's."""
    groups = [[spec for spec in plan.implemented if spec.common_component is together] for together in (False, True)]
    return [specs for specs in groups if specs]


def _cell_inputs(
    plan: Plan, cells: ConceptPlan, splits: Sequence[str], spec: StrategySpec, layer: int
) -> dict[str, str]:
    """The vectors of a cell by role, and the common component to take out of them."""
    inputs = {f"{split}/{spec.id}/{layer}": cells.vectors[split, spec.id, layer] for split in splits}
    if spec.common_component:
        inputs[f"component/{spec.id}/{layer}"] = plan.components[spec.id, layer]
    return inputs


def plan_neighbour_directions(plan: Plan, cells: ConceptPlan) -> None:
    """Directions of a concept that is a neighbour only, where it takes the prober to find them.

    That is where it completes the vectors, and where another direction steers than the difference of means.
    """
    by_prober = plan.config.steering.direction != "C1"
    layer, params = plan.steering_layer, {"concept": cells.concept.id, "seed": plan.config.seed}
    passages = {"passages/train": cells.passages["train"]}
    for specs in _by_what_they_wait_for(plan):
        inputs, outputs = dict(passages), {}
        for spec in specs:
            if spec.completed_by_prober or by_prober:
                vectors = _cell_inputs(plan, cells, ("train",), spec, layer)
                inputs |= vectors
                key = step_key("prober.directions", _cell_params(spec, params), {**passages, **vectors})
                outputs[f"directions/{spec.id}/{layer}"] = cells.directions[spec.id, layer] = key
        if outputs:
            plan.add(Task(kind="prober.directions", inputs=inputs, outputs=outputs, params=params))


def _cell_key(spec: StrategySpec, params: dict[str, Any], part: str, inputs: dict[str, str]) -> str:
    return step_key("prober.probe", {**_cell_params(spec, params), "part": part}, inputs)


def _cell_params(spec: StrategySpec, params: dict[str, Any]) -> dict[str, Any]:
    """What enters a cell's keys: another set of directions makes other keys, and another readout where there is one."""
    specs = all_directions()
    ids = implemented_directions(("sae",) if "sae_features" in params else ())
    constructions = {name: specs[name].version for name in ids}
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
