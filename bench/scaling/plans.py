"""Plans to simulate: the card's models and concepts, with passages that exist in the plan but not in the store."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from poolbench.config import ModelRef
from poolbench.steps.pooler import ANNOTATE
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.estimate import Cluster
from poolbench_driver.estimate.estimate import estimate_tasks, model_of
from poolbench_driver.estimate.hardware import GPUS
from poolbench_driver.estimate.order import ordered
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_driver.stages.stage import Plan, PlannedWork, joined
from poolbench_driver.suites.poolbench.plan import make_plan
from scaling.cluster import GPU_SERVICES, Times

#: The card's models: blocks and width.
CARD_MODELS = {"llama-3.1-8b": (32, 4096), "gemma-2-9b": (42, 3584), "mistral-7b-v0.3": (32, 4096)}
#: Settings of the plans: planted passages and the shipped encoder, because no corpus and no weights are needed.
SIMULATED = {
    "protocol": "corrected",
    "strategies": None,
    "layers": None,
    "steering_layer": 0.5,
    "corpus": {"source": "planted", "window": [300, 500]},
    "scorer_base": "minilm",
    "scorer_mode": "full",
}
#: Times of tasks vary by so much around their estimate, as a share.
VARIATION = 0.2
_SMALL = pa.table({"x": [0]})


def card_plan(model: str, preset: str = "card", **settings: object) -> Plan:
    """Return the plan of one of the card's models, with passages of 300 to 500 words."""
    num_blocks, width = CARD_MODELS[model]
    given = {"preset": preset, "model": model, **SIMULATED, **settings}
    config = load_run_config(None, given)
    config, strategies = resolve_names(config)
    info = ModelInfo(ModelRef(model, model, "simulated", "bfloat16"), num_blocks, width)
    return light(ordered(make_plan(Scope(config, info, tuple(strategies)))))


def many_tasks(number: int) -> Plan:
    """Return one plan with at least so many tasks: runs with other seeds and few strategies, joined."""
    plans: list[Plan] = []
    while len(joined(_stages(plans)).tasks) < number:
        settings = {"strategies": ["A1_mean", "P1_last_token"], "layers": [0.5], "seed": len(plans)}
        plans.append(card_plan("llama-3.1-8b", **settings))
    return ordered(replace(plans[0], work=joined(_stages(plans))))


def light(plan: Plan) -> Plan:
    """Return the plan with local steps that write one row instead of passages."""
    local = {key: replace(step, build=lambda: _SMALL) for key, step in plan.local.items()}
    return replace(plan, work=PlannedWork(plan.tasks, local))


def times_of(plans: Sequence[Plan], gpu: str, rates: Rates | None = None, *, pooler_processes: int = 1) -> Times:
    """Return how long each task takes, from recorded timings where there are some, else from the model.

    Args:
        plans: The runs.
        gpu: Kind of the GPUs.
        rates: Recorded timings.
        pooler_processes: Among how many processes a pooler divides an annotation.
    """
    cluster = Cluster(gpus=1, gpu=GPUS[gpu])
    tasks, loading, sources = dict[str, float](), dict[str, float](), Counter[str]()
    for plan in plans:
        found = estimate_tasks(plan, plan.tasks.values(), rates or Rates(), cluster)
        for task_id, each in found.items():
            if each.seconds is None:
                raise SystemExit(f"{each.amount.task.kind}: {each.reason}")
            sources[each.source] += 1
            tasks[task_id] = each.seconds.expected * (1 + VARIATION * _noise(task_id))
            if each.amount.task.kind == ANNOTATE.kind:
                tasks[task_id] /= pooler_processes
        loading |= {name: model_of(plan, cluster).start_s(name).expected for name in GPU_SERVICES}
    return Times(tasks, loading, sources)


def _noise(task_id: str) -> float:
    """Return a number from -1 to 1 that depends on the task alone."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4]) / 2**31 - 1


def _stages(plans: Iterable[Plan]) -> Iterable[object]:
    from poolbench_driver.stages.stage import Stage

    return [Stage(plan.work) for plan in plans]
