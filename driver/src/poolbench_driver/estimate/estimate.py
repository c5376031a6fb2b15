"""The estimate of a run: time, GPU hours, bytes and money by stage, from recorded timings or from the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.estimate.amounts import Amount, amounts_of, local_bytes
from poolbench_driver.estimate.flops import Model, NoEstimateError
from poolbench_driver.estimate.hardware import GPU_SERVICES, Gpu
from poolbench_driver.estimate.quantities import Range, total
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.estimate.schedule import Capacity, schedule
from poolbench_driver.stages.stage import Plan

Source = Literal["recorded", "model", "both", "none"]
HOUR_S = 3600.0
#: Other work that a reason names.
_NAMED = 2
#: The stage of what the driver builds itself.
LOCAL = "driver"


@dataclass(frozen=True)
class Cluster:
    """What an estimate is made for."""

    gpus: int = 0  # that extractor, scorer and steerer have together
    gpu: Gpu | None = None  # their kind, for the model; None if there are none
    price_per_gpu_hour: float | None = None
    replicas: Mapping[str, int] | None = None  # by service, where they differ from the default

    @property
    def capacity(self) -> Capacity:
        """Return the replicas of each service."""
        return Capacity.of(self.gpus, self.replicas)


@dataclass(frozen=True)
class TaskEstimate:
    """Time and bytes of one task, and what they were estimated from."""

    amount: Amount
    seconds: Range | None
    num_bytes: Range
    source: Source
    reason: str = ""  # why there is no time


@dataclass(frozen=True)
class StageEstimate:
    """The tasks of one kind together; a quantity that could not be estimated is None."""

    kind: str
    num_tasks: int
    work: float | None
    unit: str
    source: Source
    reason: str
    hours: Range | None  # of work, on one replica
    gpu_hours: Range | None
    num_bytes: Range
    money: Range | None


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run."""

    cluster: Cluster
    stages: tuple[StageEstimate, ...]
    elapsed_hours: Range | None  # from the first task to the last one
    reason: str = ""  # why there is no elapsed time

    @property
    def num_bytes(self) -> Range:
        """Return what is written in all."""
        return total(stage.num_bytes for stage in self.stages)

    @property
    def gpu_hours(self) -> Range | None:
        """Return the hours in which GPUs work."""
        found = [stage.gpu_hours for stage in self.stages if _uses_gpu(stage.kind)]
        return None if not self.cluster.gpus else _total(found)

    @property
    def held_gpu_hours(self) -> Range | None:
        """Return the hours for which all GPUs are occupied, at work or not."""
        known = self.elapsed_hours is not None and self.cluster.gpus
        return self.elapsed_hours.times(self.cluster.gpus) if known and self.elapsed_hours else None

    @property
    def money(self) -> Range | None:
        """Return the price of the GPUs from the first task to the last one."""
        price, held = self.cluster.price_per_gpu_hour, self.held_gpu_hours
        return None if price is None or held is None else held.times(price)


def estimate(plan: Plan, todo: Collection[Task], present: Collection[str], rates: Rates, cluster: Cluster) -> Estimate:
    """Return the estimate of the tasks that are left of a plan.

    Args:
        plan: The whole plan.
        todo: Tasks that are left.
        present: Keys of committed artifacts.
        rates: What this cluster has reached; tried first.
        cluster: GPUs, replicas and price.
    """
    each, model = estimate_tasks(plan, todo, rates, cluster), model_of(plan, cluster)
    by_kind: dict[str, list[TaskEstimate]] = {}
    for task in todo:
        by_kind.setdefault(task.kind, []).append(each[task.task_id])
    local = [step for step in plan.local.values() if step.key not in present]
    stages = [_local(plan, local)] if local else []
    stages += [_stage(kind, found, cluster) for kind, found in by_kind.items()]
    unknown = sorted({stage.kind for stage in stages if stage.hours is None and stage.kind != LOCAL})
    if unknown:
        return Estimate(cluster, tuple(stages), None, f"no time is known for {', '.join(unknown)}")
    return Estimate(cluster, tuple(stages), _elapsed(todo, each, present, model, cluster))


def model_of(plan: Plan, cluster: Cluster) -> Model:
    """Return the model of FLOPs and bandwidth for a plan on a cluster."""
    return Model(plan.facts, cluster.gpu if cluster.gpus else None)


def estimate_tasks(plan: Plan, todo: Iterable[Task], rates: Rates, cluster: Cluster) -> dict[str, TaskEstimate]:
    """Return the estimate of each task by id."""
    amounts, model = amounts_of(plan), model_of(plan, cluster)
    return {task.task_id: _task(amounts[task.task_id], rates, model) for task in todo}


def _task(amount: Amount, rates: Rates, model: Model) -> TaskEstimate:
    """Estimate one task from recorded timings, or else from the model."""
    work, service = amount.work, amount.task.service
    on_gpu = service in GPU_SERVICES and model.gpu is not None
    if work is not None:
        places = (on_gpu,) if service in GPU_SERVICES else (on_gpu, not on_gpu)  # others do not depend on a GPU
        for place in places:
            if rate := rates.get(amount.task.kind, work.unit, work.variant, on_gpu=place):
                seconds, num_bytes = rate.seconds.times(work.amount), rate.num_bytes.times(work.amount)
                return TaskEstimate(amount, seconds, num_bytes, "recorded")
    try:
        return TaskEstimate(amount, model.seconds(amount), amount.num_bytes, "model")
    except NoEstimateError as error:
        reason = f"{_timed(amount, rates)}, and {error}"
        return TaskEstimate(amount, None, amount.num_bytes, "none", reason)


def _timed(amount: Amount, rates: Rates) -> str:
    """Return that a cluster has no timings of a task, and of which other work of its kind it has some."""
    found = rates.of(amount.task.kind)
    if not found:
        return "this cluster has no timings of this work"
    others = sorted({f"{each.variant or each.unit} on {'GPUs' if each.on_gpu else 'CPUs'}" for each in found})
    more = f" and {len(others) - _NAMED} others" if len(others) > _NAMED else ""
    return f"this cluster's timings are of other work ({', '.join(others[:_NAMED])}{more})"


def _stage(kind: str, tasks: list[TaskEstimate], cluster: Cluster) -> StageEstimate:
    seconds = _total(task.seconds for task in tasks)
    hours = None if seconds is None else seconds.times(1 / HOUR_S)
    gpu_hours = hours if _uses_gpu(kind) and cluster.gpus else None
    works = [task.amount.work for task in tasks]
    price = cluster.price_per_gpu_hour
    return StageEstimate(
        kind,
        len(tasks),
        None if None in works else sum(work.amount for work in works if work),
        next((work.unit for work in works if work), ""),
        _source(task.source for task in tasks),
        next((task.reason for task in tasks if task.reason), ""),
        hours,
        gpu_hours,
        total(task.num_bytes for task in tasks),
        None if price is None or gpu_hours is None else gpu_hours.times(price),
    )


def _local(plan: Plan, steps: list[LocalStep]) -> StageEstimate:
    rows = sum(step.count() for step in steps)
    num_bytes = total(local_bytes(plan.facts, step) for step in steps)
    reason = "the driver builds passages and openings itself, before it sends tasks; this is not timed"
    return StageEstimate(LOCAL, len(steps), rows, "passages", "none", reason, None, None, num_bytes, None)


def _elapsed(
    todo: Iterable[Task], each: Mapping[str, TaskEstimate], present: Collection[str], model: Model, cluster: Cluster
) -> Range:
    """Schedule the tasks three times: at their expected times and at both bounds."""
    ends = []
    recorded = {found.amount.task.service for found in each.values() if found.source == "recorded"}
    for bound in Range._fields:
        seconds = {task_id: getattr(found.seconds, bound) for task_id, found in each.items()}
        # Recorded times of first tasks include the start of their replica.
        start = {name: 0.0 if name in recorded else getattr(model.start_s(name), bound) for name in SERVICES}
        made = schedule(todo, seconds, cluster.capacity, present=present, start_s=start.__getitem__)
        ends.append(made.end_s / HOUR_S)
    expected, low, high = ends
    return Range(expected, min(low, expected), max(high, expected))  # a list schedule may be worse with shorter tasks


def _uses_gpu(kind: str) -> bool:
    return kind.partition(".")[0] in GPU_SERVICES


def _total(found: Iterable[Range | None]) -> Range | None:
    ranges = list(found)
    known = [each for each in ranges if each is not None]
    return total(known) if len(known) == len(ranges) else None


def _source(found: Iterable[Source]) -> Source:
    sources = set(found)
    return sources.pop() if len(sources) == 1 else "none" if "none" in sources else "both"


def joined(found: Sequence[Estimate]) -> Estimate:
    """Return the estimate of several runs, one after the other. A quantity that one of them lacks is None."""
    by_kind: dict[str, list[StageEstimate]] = {}
    for stage in (stage for each in found for stage in each.stages):
        by_kind.setdefault(stage.kind, []).append(stage)
    reasons = dict.fromkeys(each.reason for each in found if each.reason)
    elapsed = _total(each.elapsed_hours for each in found)
    return Estimate(found[0].cluster, tuple(map(_joined, by_kind.values())), elapsed, "; ".join(reasons))


def _joined(stages: Sequence[StageEstimate]) -> StageEstimate:
    works = [stage.work for stage in stages]
    return StageEstimate(
        stages[0].kind,
        sum(stage.num_tasks for stage in stages),
        None if None in works else sum(work for work in works if work is not None),
        stages[0].unit,
        _source(stage.source for stage in stages),
        next((stage.reason for stage in stages if stage.reason), ""),
        _total(stage.hours for stage in stages),
        _total(stage.gpu_hours for stage in stages),
        total(stage.num_bytes for stage in stages),
        _total(stage.money for stage in stages),
    )


def as_json(found: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON; a quantity without an estimate is null, and `reason` says why."""
    cluster = found.cluster
    return {
        "gpus": cluster.gpus,
        "gpu": cluster.gpu.id if cluster.gpus and cluster.gpu else None,
        "replicas": dict(cluster.capacity.replicas),
        "price_per_gpu_hour": cluster.price_per_gpu_hour,
        "stages": [
            {
                "kind": stage.kind,
                "tasks": stage.num_tasks,
                "work": stage.work,
                "unit": stage.unit,
                "source": stage.source,
                "reason": stage.reason or None,
                "hours": _json(stage.hours),
                "gpu_hours": _json(stage.gpu_hours),
                "bytes": _json(stage.num_bytes),
                "money": _json(stage.money),
            }
            for stage in found.stages
        ],
        "total": {
            "elapsed_hours": _json(found.elapsed_hours),
            "gpu_hours": _json(found.gpu_hours),
            "held_gpu_hours": _json(found.held_gpu_hours),
            "bytes": _json(found.num_bytes),
            "money": _json(found.money),
            "reason": found.reason or None,
        },
    }


def _json(found: Range | None) -> dict[str, float] | None:
    return None if found is None else found.rounded()
