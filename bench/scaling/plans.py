"""Plans to simulate: the card's models and concepts, with passages that exist in the plan but not in the store."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from poolbench.config import ModelRef
from poolbench.steps.pooler import ANNOTATE
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.estimate import ClusterSize
from poolbench_driver.estimate.amounts import ordered
from poolbench_driver.estimate.estimate import estimate_tasks
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_driver.stages.stage import Plan, PlannedWork, Stage, joined
from scaling.cluster import Times

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
    "steering": {"reading": "whole"},  # as the card's own protocol
}
#: Seconds per unit of work (passages, vectors, tokens, scores, texts) on one H100, or on two cores of a service without
#: GPU, for the card's models. Extraction, generation and likelihood were measured with the shape of Llama-3.1-8B
#: (docs/results/gpu.md), annotation and probes on two cores; training, scores and gate are assumed.
SECONDS_PER_UNIT = {
    "pooler.annotate": 0.0533,
    "extractor.extract": 0.0398,
    "extractor.calibrate": 0.0457,
    "prober.nulls": 3.7e-6,
    "prober.probe": 0.00209,
    "prober.directions": 0.00018,
    "steerer.generate": 0.000122,
    "steerer.complete": 0.000122,
    "steerer.continue": 0.000234,
    "scorer.train": 0.0282,
    "scorer.score": 0.00103,
    "scorer.gate": 0.00481,
}
#: Seconds until a replica has loaded a language model: of a vLLM engine as measured, of the extractor at 1 GB/s.
LOADING_S = {"steerer": 139.0, "extractor": 13.0}
#: Times of tasks vary by so much around their estimate, as a share.
VARIATION = 0.2
_SMALL = pa.table({"x": [0]})


def card_plan(model: str, preset: str = "card", **settings: Any) -> ConceptsPlan:
    """Return the plan of one of the card's models, with passages of 300 to 500 words."""
    num_blocks, width = CARD_MODELS[model]
    options = {"preset": preset, "model": model, **SIMULATED, **settings}
    run_config = load_run_config(None, options)
    assert isinstance(run_config, ConceptsConfig)
    config, strategies = resolve_names(run_config)
    info = ModelInfo(ModelRef(model, model, "simulated", "bfloat16"), num_blocks, width)
    return light(ordered(make_plan(Scope(config, info, tuple(strategies)))))


def many_tasks(number: int) -> ConceptsPlan:
    """Return one plan with at least so many tasks: runs with other seeds and few strategies, joined."""
    plans: list[ConceptsPlan] = []
    while len(joined(_stages(plans)).tasks) < number:
        strategies = ["A1_mean", "P1_last_token"]
        plans.append(card_plan("llama-3.1-8b", strategies=strategies, layers=[0.5], seed=len(plans)))
    return ordered(replace(plans[0], work=joined(_stages(plans))))


def light(plan: ConceptsPlan) -> ConceptsPlan:
    """Return the plan with local steps that write one row instead of passages."""
    local = {key: replace(step, build=lambda: _SMALL) for key, step in plan.local.items()}
    return replace(plan, work=PlannedWork(plan.tasks, local))


def times_of(plans: Sequence[Plan], rates: Rates | None = None, *, pooler_processes: int = 1) -> Times:
    """Return how long each task takes, from recorded timings where there are some, else from `SECONDS_PER_UNIT`.

    Args:
        plans: The runs.
        rates: Recorded timings.
        pooler_processes: Among how many processes a pooler divides an annotation.
    """
    tasks, sources = dict[str, float](), Counter[str]()
    for plan in plans:
        estimates = estimate_tasks(plan, plan.tasks.values(), rates or Rates(), ClusterSize(gpus=1))
        for task_id, task in estimates.items():
            assert task.work is not None
            seconds = task.seconds.expected if task.seconds else SECONDS_PER_UNIT[task.kind] * task.work
            sources["recorded" if task.seconds else "assumed"] += 1
            tasks[task_id] = seconds * (1 + VARIATION * _noise(task_id))
            if task.kind == ANNOTATE.kind:
                tasks[task_id] /= pooler_processes
    return Times(tasks, LOADING_S, sources)


def _noise(task_id: str) -> float:
    """Return a number from -1 to 1 that depends on the task alone."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4]) / 2**31 - 1


def _stages(plans: Iterable[Plan]) -> Iterable[Stage]:
    return [Stage(plan.work) for plan in plans]
