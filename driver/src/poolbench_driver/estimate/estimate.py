"""The estimate of a run: time, GPU hours, bytes and money by stage, from the times that this cluster has recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.grouping import grouped
from poolbench_driver.estimate.amounts import Amount, Range, amounts_of, chains, local_bytes, makespan_s, ordered, total
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.stages.stage import Plan

if TYPE_CHECKING:
    from poolbench_driver.corpora.sources import LocalStep

#: The services that use a GPU where there is one.
GPU_SERVICES = ("extractor", "scorer", "steerer")
HOUR_S = 3600.0
#: Other work that a reason names.
_NAMED = 2
#: The stage of what the driver builds itself.
LOCAL = "driver"


@dataclass(frozen=True)
class ClusterSize:
    """The cluster that an estimate is for."""

    gpus: int = 0  # that extractor, scorer and steerer have together
    price_per_gpu_hour: float | None = None
    named_replicas: Mapping[str, int] | None = None  # by service, where they differ from the default

    @property
    def replicas(self) -> dict[str, int]:
        """Return the replicas of each service. By default, one each, and steerers on all GPUs but two."""
        return dict.fromkeys(SERVICES, 1) | {"steerer": max(1, self.gpus - 2)} | dict(self.named_replicas or {})

    def price(self, gpu_hours: Range | None) -> Range | None:
        """Return the price of GPU hours, or None if the hours or the price per hour are unknown."""
        price = self.price_per_gpu_hour
        return None if price is None or gpu_hours is None else gpu_hours.times(price)


@dataclass(frozen=True)
class StageEstimate:
    """One task, or the tasks of one kind together. A quantity that could not be estimated is None."""

    kind: str
    num_tasks: int
    work: float | None
    unit: str
    num_bytes: Range
    seconds: Range | None = None  # of work, on one replica
    reason: str = ""  # why there is no time
    peak_bytes: int = 0  # the most memory of a replica, or of its device; 0 where none was recorded

    @property
    def hours(self) -> Range | None:
        """Return the hours of work on one replica."""
        return None if self.seconds is None else self.seconds.times(1 / HOUR_S)


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run."""

    cluster: ClusterSize
    stages: tuple[StageEstimate, ...]
    elapsed_hours: Range | None  # from the first task to the last one
    reason: str = ""  # why there is no elapsed time

    def gpu_hours_of(self, stage: StageEstimate) -> Range | None:
        """Return the hours in which GPUs work on a stage."""
        return stage.hours if self.cluster.gpus and _uses_gpu(stage) else None

    @property
    def num_bytes(self) -> Range:
        """Return the bytes that all tasks write."""
        return total(stage.num_bytes for stage in self.stages)

    @property
    def peak_bytes(self) -> int | None:
        """Return the largest memory of all replicas. None if a service in use has no record of its memory."""
        peaks: dict[str, int] = defaultdict(int)
        for stage in self.stages:
            if stage.kind != LOCAL:
                service = stage.kind.partition(".")[0]
                peaks[service] = max(peaks[service], stage.peak_bytes)
        if not all(peaks.values()):
            return None
        return sum(peak * self.cluster.replicas.get(service, 1) for service, peak in peaks.items())

    @property
    def gpu_hours(self) -> Range | None:
        """Return the hours in which GPUs work."""
        return _total(stage.hours for stage in self.stages if _uses_gpu(stage)) if self.cluster.gpus else None

    @property
    def held_gpu_hours(self) -> Range | None:
        """Return the hours for which all GPUs are occupied, at work or not."""
        return self.elapsed_hours.times(self.cluster.gpus) if self.elapsed_hours and self.cluster.gpus else None

    @property
    def money(self) -> Range | None:
        """Return the price of the GPUs from the first task to the last task."""
        return self.cluster.price(self.held_gpu_hours)


def estimate(
    plan: Plan, todo: Collection[Task], present: Collection[str], rates: Rates, cluster: ClusterSize
) -> Estimate:
    """Return the estimate of the remaining tasks of a plan.

    Args:
        plan: The whole plan.
        todo: The remaining tasks.
        present: Keys of committed artifacts.
        rates: Rates of work that this cluster has reached.
        cluster: GPUs, replicas and price.
    """
    by_task = estimate_tasks(plan, todo, rates, cluster)
    local_steps = [step for step in plan.local.values() if step.key not in present]
    stages = (*([_local(plan, local_steps)] if local_steps else []), *_by_kind(by_task.values()))
    untimed = sorted(stage.kind for stage in stages if stage.seconds is None and stage.kind != LOCAL)
    if untimed:
        return Estimate(cluster, stages, None, f"no time is known for {', '.join(untimed)}")
    # No order of the tasks takes less than the work of the busiest service over its replicas, or than the longest chain
    # of tasks that wait for one another; hardly one takes more than both together (Graham 1969).
    expected, low, high = (_bounds_s(todo, by_task, cluster, bound) for bound in Range._fields)
    seconds = {name: stage.seconds.expected if stage.seconds else 0.0 for name, stage in by_task.items()}
    in_order = [task for name, task in ordered(plan).tasks.items() if name in by_task]
    in_turn_s = max(*expected, makespan_s(in_order, seconds, cluster.replicas))
    return Estimate(cluster, stages, Range(in_turn_s, max(low), max(in_turn_s, sum(high))).times(1 / HOUR_S))


def estimate_tasks(plan: Plan, todo: Iterable[Task], rates: Rates, cluster: ClusterSize) -> dict[str, StageEstimate]:
    """Return the estimate of each task by id: the work of the task, times the rate of similar tasks."""
    amounts = amounts_of(plan)
    return {task.task_id: _task(amounts[task.task_id], rates, on_gpu=cluster.gpus > 0) for task in todo}


def _task(amount: Amount, rates: Rates, *, on_gpu: bool) -> StageEstimate:
    kind, work = amount.task.kind, amount.work
    if work is None:
        reason = "the number of passages is not known before the run"
        return StageEstimate(kind, 1, None, "", amount.num_bytes, None, reason)
    # The time of the other services does not depend on a GPU of their machine.
    for place in (on_gpu,) if amount.task.service in GPU_SERVICES else (on_gpu, not on_gpu):
        if rate := rates.get(kind, work.unit, work.variant, on_gpu=place):
            num_bytes, seconds = rate.num_bytes.times(work.amount), rate.seconds.times(work.amount)
            return StageEstimate(kind, 1, work.amount, work.unit, num_bytes, seconds, peak_bytes=rate.peak_bytes)
    groups = rates.of(kind)
    others = sorted({f"{group.variant or group.unit} on {'GPUs' if group.on_gpu else 'CPUs'}" for group in groups})
    more = f" and {len(others) - _NAMED} others" if len(others) > _NAMED else ""
    reason = f"this cluster has executed other work only ({', '.join(others[:_NAMED])}{more})"
    reason = reason if others else "this cluster has not executed this work yet"
    return StageEstimate(kind, 1, work.amount, work.unit, amount.num_bytes, None, reason)


def _local(plan: Plan, steps: list[LocalStep]) -> StageEstimate:
    rows = sum(step.count() for step in steps)
    num_bytes = total(local_bytes(plan.facts, step) for step in steps)
    reason = "the driver builds passages and openings itself, before it sends tasks; this is not timed"
    return StageEstimate(LOCAL, len(steps), rows, "passages", num_bytes, None, reason)


def _bounds_s(
    todo: Collection[Task], by_task: Mapping[str, StageEstimate], cluster: ClusterSize, bound: str
) -> tuple[float, float]:
    """Return the seconds of the busiest service over all its replicas (or of all GPUs), and of the longest chain."""
    seconds = {name: getattr(task.seconds, bound) for name, task in by_task.items()}
    work_s: dict[str, float] = defaultdict(float)
    for task in todo:
        work_s[task.service] += seconds[task.task_id]
    busiest_s = max((work_s[name] / number for name, number in cluster.replicas.items()), default=0.0)
    if cluster.gpus:
        busiest_s = max(busiest_s, sum(work_s[name] for name in GPU_SERVICES) / cluster.gpus)
    return busiest_s, max(chains(todo, seconds).values(), default=0.0)


def _uses_gpu(stage: StageEstimate) -> bool:
    return stage.kind.partition(".")[0] in GPU_SERVICES


def _total(ranges: Iterable[Range | None]) -> Range | None:
    parts = list(ranges)
    present = [part for part in parts if part is not None]
    return total(present) if len(present) == len(parts) else None


def joined(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate of several runs in sequence. A quantity is None if one of the runs lacks the quantity."""
    stages = _by_kind(stage for run in estimates for stage in run.stages)
    reasons = dict.fromkeys(run.reason for run in estimates if run.reason)
    elapsed_hours = _total(run.elapsed_hours for run in estimates)
    return Estimate(estimates[0].cluster, tuple(stages), elapsed_hours, "; ".join(reasons))


def _by_kind(parts: Iterable[StageEstimate]) -> list[StageEstimate]:
    """Return the sum of the estimates of each kind, in the order in which the kinds first occur."""
    by_kind = grouped((part.kind, part) for part in parts)
    stages = []
    for kind, same_kind in by_kind.items():
        works = [part.work for part in same_kind]
        stages.append(
            StageEstimate(
                kind,
                sum(part.num_tasks for part in same_kind),
                None if None in works else sum(work for work in works if work is not None),
                next((part.unit for part in same_kind if part.unit), ""),
                total(part.num_bytes for part in same_kind),
                _total(part.seconds for part in same_kind),
                next((part.reason for part in same_kind if part.reason), ""),
                max(part.peak_bytes for part in same_kind),
            )
        )
    return stages


def as_json(run: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON. A quantity without an estimate is null, and `reason` says why."""
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
                "gpu_hours": _json(run.gpu_hours_of(stage)),
                "bytes": _json(stage.num_bytes),
                "peak_bytes": stage.peak_bytes or None,
                "money": _json(run.cluster.price(run.gpu_hours_of(stage))),
            }
            for stage in run.stages
        ],
        "total": {
            "elapsed_hours": _json(run.elapsed_hours),
            "gpu_hours": _json(run.gpu_hours),
            "held_gpu_hours": _json(run.held_gpu_hours),
            "bytes": _json(run.num_bytes),
            "peak_bytes": run.peak_bytes,
            "money": _json(run.money),
            "reason": run.reason or None,
        },
    }


def _json(quantity: Range | None) -> dict[str, float] | None:
    return None if quantity is None else quantity.rounded()
