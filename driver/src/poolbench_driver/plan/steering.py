"""Plans D2 and D3: directions to steered texts and their fluency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolbench.contracts.tasks import Task, step_key
from poolbench_driver.corpora import calibration_step, openings_step
from poolbench_driver.plan.plan import NULLS, UNSTEERED, ConceptPlan, Plan

#: Texts of this many strategies are generated, and scored, by one task: some seconds of work on one device.
STRATEGIES_PER_TASK = 4


@dataclass(frozen=True)
class Sweep:
    """Directions taken through strengths.

    Attributes:
        strengths: In the budget's unit.
        direction_ids: Rows of the direction tables; None takes all.
    """

    strengths: Sequence[float]
    direction_ids: Sequence[str] | None = None

    def params(self, plan: Plan) -> dict[str, Any]:
        """The parameters of ``steerer.generate``; options at their default stay out, so that they move no key."""
        budget = plan.config.budget
        return {
            **plan.model.params,
            "layer": plan.steering_layer,
            "strengths": list(self.strengths),
            "max_tokens": budget.max_tokens,
            "alpha_unit": budget.alpha_unit,
            "direction_ids": "all" if self.direction_ids is None else list(self.direction_ids),
            "seed": plan.config.seed,
            **plan.config.steering.changed(),
        }


def plan_shared_steering(plan: Plan) -> None:
    """What all concepts share: the openings, the unsteered texts and, as unit of strength, the calibration norm."""
    budget = plan.config.budget
    plan.openings = plan.add_local(openings_step(budget.opening_set, budget.num_openings))
    if budget.alpha_unit == "residual_norm":
        texts = {"passages": plan.add_local(calibration_step())}
        params = {**plan.model.params, "layers": [plan.steering_layer]}
        plan.calibration = plan.add_step("extractor.calibrate", "calibration", texts, params)
    made = _plan_generation(plan, {UNSTEERED: {}}, Sweep([0.0]))
    plan.unsteered = (*made[UNSTEERED], "")


def plan_steering(plan: Plan, cells: ConceptPlan) -> None:
    """Steered texts of every strategy and of the concept's null directions, at the steering layer."""
    budget = plan.config.budget
    _plan_texts(plan, cells, {NULLS: cells.nulls}, Sweep(budget.null_strengths))
    for names in strategy_batches(plan):
        directions = {name: cells.directions[name, plan.steering_layer] for name in names}
        _plan_texts(plan, cells, directions, Sweep(budget.strengths, [plan.config.steering.direction]))


def strategy_batches(plan: Plan) -> list[list[str]]:
    """The strategies' ids in the portions that one task takes."""
    ids = [spec.id for spec in plan.implemented]
    return [ids[start : start + STRATEGIES_PER_TASK] for start in range(0, len(ids), STRATEGIES_PER_TASK)]


def _plan_texts(plan: Plan, cells: ConceptPlan, directions: Mapping[str, str], sweep: Sweep) -> None:
    given = {name: {"directions": key} for name, key in directions.items()}
    for name, (texts, fluency) in _plan_generation(plan, given, sweep).items():
        cells.texts[name], cells.fluency[name] = texts, fluency


def _plan_generation(
    plan: Plan, directions: Mapping[str, Mapping[str, str]], sweep: Sweep
) -> dict[str, tuple[str, str]]:
    """Adds one task; the key of a name's texts depends on its own directions and not on its companions.

    Args:
        plan: The plan.
        directions: The inputs that each name's texts are steered by.
        sweep: Strengths.

    Returns:
        Keys of texts and fluency by name.
    """
    shared, params = {"prompts": plan.openings}, sweep.params(plan)
    if plan.calibration:
        shared["calibration"] = plan.calibration
    inputs, outputs, made = dict(shared), {}, {}
    for name, own in directions.items():
        keys = [
            step_key("steerer.generate", {**params, "part": part}, {**own, **shared}) for part in ("texts", "fluency")
        ]
        outputs[f"texts/{name}"], outputs[f"fluency/{name}"] = keys
        inputs |= {f"{role}/{name}": key for role, key in own.items()}
        made[name] = (keys[0], keys[1])
    plan.add(Task(kind="steerer.generate", inputs=inputs, outputs=outputs, params=params))
    return made
