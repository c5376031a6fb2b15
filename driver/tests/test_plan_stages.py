"""Stages are values: another suite takes some and leaves others."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from poolbench.config import ModelRef
from poolbench.pooling.registry import STRATEGIES
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.probes import plan_components, plan_probes
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan
from poolbench_driver.stages.vectors import plan_vectors
from poolbench_driver.suites.poolbench.plan import make_plan

MODEL = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=4)


def scope_of(**settings: object) -> Scope:
    config = load_run_config(None, {"preset": "demo", "concepts": ["contrast", "causation"], "layers": [2], **settings})
    return Scope(config, MODEL, tuple(STRATEGIES.get(name) for name in ("A1_mean", "S4_sif")))


def test_vectors_and_probes_alone_are_a_plan() -> None:
    scope = scope_of()
    vectors = plan_vectors(scope)
    components = plan_components(scope, vectors)
    plan = Plan.of(scope.config, scope.facts, vectors, components, plan_probes(scope, vectors, components))
    assert {task.service for task in plan.tasks.values()} == {"pooler", "extractor", "prober"}
    whole = make_plan(scope)
    assert list(plan.tasks) == [task_id for task_id in whole.tasks if task_id in plan.tasks]
    assert plan.keys < whole.keys
    made = set(plan.local)
    for task in plan.tasks.values():  # in sending order, each input is there before
        assert made.issuperset(task.inputs.values())
        made.update(task.outputs.values())


def test_stages_are_frozen_and_joined_once() -> None:
    plan = make_plan(scope_of())
    with pytest.raises(FrozenInstanceError):
        plan.vectors = None  # type: ignore[misc,assignment]
    assert Plan.of(plan.config, plan.facts, plan.vectors, plan.vectors).tasks == plan.vectors.work.tasks
