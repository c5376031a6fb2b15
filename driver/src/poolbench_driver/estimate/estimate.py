"""The estimate of a run: time, GPU hours, bytes and money by stage, from the times that this cluster has recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.estimate.amounts import Amount, Range, amounts_of, local_bytes, total
from poolbench_driver.estimate.order import chains
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.stages.stage import Plan

#: The services that use a GPU where there is one.
GPU_SERVICES = ("extractor", "scorer", "steerer")
HOUR_S = 3600.0
#: Other work that a reason names.
_NAMED = 2
#: The stage of what the driver builds itself.
LOCAL = "driver"


@dataclass(frozen=True)
class Cluster:
    """What an estimate is made for."""

    gpus: int = 0  # that extractor, scorer and steerer have together
    price_per_gpu_hour: float | None = None
    named_replicas: Mapping[str, int] | None = None  # by service, where they differ from the default

    @property
    def replicas(self) -> dict[str, int]:
        """Return the replicas of each service: one, and steerers on the GPUs that extractor and scorer leave."""
        return dict.fromkeys(SERVICES, 1) | {"steerer": max(1, self.gpus - 2)} | dict(self.named_replicas or {})


@dataclass(frozen=True)
class TaskEstimate:
    """Time and bytes of one task."""

    amount: Amount
    seconds: Range | None
    num_bytes: Range
    reason: str = ""  # why there is no time


@dataclass(frozen=True)
class StageEstimate:
    """The tasks of one kind together; a quantity that could not be estimated is None."""

    kind: str
    num_tasks: int
    work: float | None
    unit: str
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
        by_stage = [stage.gpu_hours for stage in self.stages if _uses_gpu(stage.kind)]
        return None if not self.cluster.gpus else _total(by_stage)

    @property
    def held_gpu_hours(self) -> Range | None:
        """Return the hours for which all GPUs are occupied, at work or not."""
        return self.elapsed_hours.times(self.cluster.gpus) if self.elapsed_hours and self.cluster.gpus else None

    @property
    def money(self) -> Range | None:
        """Return the price of the GPUs from the first task to the last one."""
        price, held_hours = self.cluster.price_per_gpu_hour, self.held_gpu_hours
        return None if price is None or held_hours is None else held_hours.times(price)


def estimate(plan: Plan, todo: Collection[Task], present: Collection[str], rates: Rates, cluster: Cluster) -> Estimate:
    """Return the estimate of the tasks that are left of a plan.

    Args:
        plan: The whole plan.
        todo: Tasks that are left.
        present: Keys of committed artifacts.
        rates: What this cluster has reached.
        cluster: GPUs, replicas and price.
    """
    by_task = estimate_tasks(plan, todo, rates, cluster)
    by_kind: dict[str, list[TaskEstimate]] = defaultdict(list)
    for task in todo:
        by_kind[task.kind].append(by_task[task.task_id])
    local_steps = [step for step in plan.local.values() if step.key not in present]
    stages = [_local(plan, local_steps)] if local_steps else []
    stages += [_stage(kind, tasks, cluster) for kind, tasks in by_kind.items()]
    untimed = sorted({stage.kind for stage in stages if stage.hours is None and stage.kind != LOCAL})
    if untimed:
        return Estimate(cluster, tuple(stages), None, f"no time is known for {', '.join(untimed)}")
    return Estimate(cluster, tuple(stages), _elapsed(todo, by_task, cluster))


def estimate_tasks(plan: Plan, todo: Iterable[Task], rates: Rates, cluster: Cluster) -> dict[str, TaskEstimate]:
    """Return the estimate of each task by id."""
    amounts = amounts_of(plan)
    return {task.task_id: _task(amounts[task.task_id], rates, on_gpu=cluster.gpus > 0) for task in todo}


def _task(amount: Amount, rates: Rates, *, on_gpu: bool) -> TaskEstimate:
    """Multiply the work of a task by the rate of tasks like it."""
    work, service = amount.work, amount.task.service
    if work is None:
        return TaskEstimate(amount, None, amount.num_bytes, "the number of passages is not known before the run")
    # The time of the other services does not depend on a GPU of their machine.
    places = (on_gpu,) if service in GPU_SERVICES else (on_gpu, not on_gpu)
    for place in places:
        if rate := rates.get(amount.task.kind, work.unit, work.variant, on_gpu=place):
            return TaskEstimate(amount, rate.seconds.times(work.amount), rate.num_bytes.times(work.amount))
    return TaskEstimate(amount, None, amount.num_bytes, _untimed(amount, rates))


def _untimed(amount: Amount, rates: Rates) -> str:
    """Return that a cluster has no timings of a task, and of which other work of its kind it has some."""
    groups = rates.of(amount.task.kind)
    if not groups:
        return "this cluster has not executed this work yet"
    others = sorted({f"{group.variant or group.unit} on {'GPUs' if group.on_gpu else 'CPUs'}" for group in groups})
    more = f" and {len(others) - _NAMED} others" if len(others) > _NAMED else ""
    return f"this cluster has executed other work only ({', '.join(others[:_NAMED])}{more})"


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
    return StageEstimate(LOCAL, len(steps), rows, "passages", reason, None, None, num_bytes, None)


def _elapsed(todo: Collection[Task], by_task: Mapping[str, TaskEstimate], cluster: Cluster) -> Range:
    """Return the hours from start to end.

    No order of the tasks takes less than the work of the busiest service over its replicas, or than the longest chain
    of tasks that wait for one another; hardly one takes more than both together (Graham 1969).
    """
    expected, low, high = (_bounds_s(todo, by_task, cluster, bound) for bound in Range._fields)
    return Range(max(expected) / HOUR_S, max(low) / HOUR_S, sum(high) / HOUR_S)


def _bounds_s(
    todo: Collection[Task], by_task: Mapping[str, TaskEstimate], cluster: Cluster, bound: str
) -> tuple[float, float]:
    """Return the seconds of the busiest service on all of its replicas, or of all GPUs; and of the longest chain."""
    seconds = {name: getattr(task.seconds, bound) for name, task in by_task.items()}
    work_s: dict[str, float] = defaultdict(float)
    for task in todo:
        work_s[task.service] += seconds[task.task_id]
    busiest_s = max((work_s[name] / number for name, number in cluster.replicas.items()), default=0.0)
    if cluster.gpus:
        busiest_s = max(busiest_s, sum(work_s[name] for name in GPU_SERVICES) / cluster.gpus)
    return busiest_s, max(chains(todo, seconds).values(), default=0.0)


def _uses_gpu(kind: str) -> bool:
    return kind.partition(".")[0] in GPU_SERVICES


def _total(ranges: Iterable[Range | None]) -> Range | None:
    parts = list(ranges)
    present = [part for part in parts if part is not None]
    return total(present) if len(present) == len(parts) else None


def joined(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate of several runs, one after the other. A quantity that one of them lacks is None."""
    by_kind: dict[str, list[StageEstimate]] = defaultdict(list)
    for stage in (stage for run in estimates for stage in run.stages):
        by_kind[stage.kind].append(stage)
    reasons = dict.fromkeys(run.reason for run in estimates if run.reason)
    elapsed_hours = _total(run.elapsed_hours for run in estimates)
    return Estimate(estimates[0].cluster, tuple(map(_joined, by_kind.values())), elapsed_hours, "; ".join(reasons))


def _joined(stages: Sequence[StageEstimate]) -> StageEstimate:
    works = [stage.work for stage in stages]
    return StageEstimate(
        stages[0].kind,
        sum(stage.num_tasks for stage in stages),
        None if None in works else sum(work for work in works if work is not None),
        stages[0].unit,
        next((stage.reason for stage in stages if stage.reason), ""),
        _total(stage.hours for stage in stages),
        _total(stage.gpu_hours for stage in stages),
        total(stage.num_bytes for stage in stages),
        _total(stage.money for stage in stages),
    )


def as_json(run: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON; a quantity without an estimate is null, and `reason` says why."""
    return {
        "gpus": run.cluster.gpus,
        "replicas": run.cluster.replicas,
        "price_per_gpu_hour": run.cluster.price_per_gpu_hour,
        "stages": [
            {
                "kind": stage.kind,
                "tasks": stage.num_tasks,
                "work": stage.work,
                "unit": stage.unit,
                "reason": stage.reason or None,
                "hours": _json(stage.hours),
                "gpu_hours": _json(stage.gpu_hours),
                "bytes": _json(stage.num_bytes),
                "money": _json(stage.money),
            }
            for stage in run.stages
        ],
        "total": {
            "elapsed_hours": _json(run.elapsed_hours),
            "gpu_hours": _json(run.gpu_hours),
            "held_gpu_hours": _json(run.held_gpu_hours),
            "bytes": _json(run.num_bytes),
            "money": _json(run.money),
            "reason": run.reason or None,
        },
    }


def _json(quantity: Range | None) -> dict[str, float] | None:
    return None if quantity is None else quantity.rounded()
