"""Rates that this cluster has reached: seconds and bytes per unit of work, from the manifests in its store."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poolbench.contracts.keys import RESTRICTED_PREFIX
from poolbench.errors import DamagedError, NotFoundError, RestrictedError
from poolbench.grouping import grouped
from poolbench.steps import get_step
from poolbench.storage import Artifacts
from poolbench_driver.estimate.amounts import Range

#: Manifests that are read per kind of artifact. A key ends with a hash, so the first ones are a random sample.
MAX_MANIFESTS = 1_000
_READS_AT_ONCE = 16
#: Tasks that a range needs; with fewer, the range is a factor of two either way.
_ENOUGH_TASKS = 5
#: The narrowest range: a shared machine varies at least so much.
_LEAST = (0.8, 1.25)


class TaskGroup(NamedTuple):
    """Tasks whose amounts can be compared."""

    kind: str
    unit: str
    variant: str
    on_gpu: bool  # whether the machine had a GPU


@dataclass(frozen=True)
class Rate:
    """The time of one unit of work."""

    seconds: Range
    num_bytes: Range
    num_tasks: int  # that it was taken from
    peak_bytes: int = 0  # the most memory of a worker at such a task, or of its device; 0 where none was recorded


class _Work(BaseModel):
    amount: float = Field(gt=0, lt=1e15, allow_inf_nan=False)
    unit: str
    variant: str = ""


class _Producer(BaseModel):
    """What a worker writes into a manifest; other versions write less, and then it is of no use here."""

    model_config = ConfigDict(extra="ignore")

    kind: str
    task_id: str
    accelerator: str
    work: _Work
    num_outputs: int = Field(gt=0)
    wall_s: float = Field(ge=0, lt=1e9, allow_inf_nan=False)
    peak_bytes: int = Field(0, ge=0, lt=1 << 60)


@dataclass
class _Seen:
    """Sums over the manifests of one task."""

    num_outputs: int
    amount: float = 0.0
    seconds: float = 0.0
    num_bytes: float = 0.0
    num_found: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True)
class Rates:
    """The rates of a cluster by group."""

    by_group: Mapping[TaskGroup, Rate] = field(default_factory=dict)

    def get(self, kind: str, unit: str, variant: str, *, on_gpu: bool) -> Rate | None:
        """Return the rate of a group. None if this cluster has executed no task of the group."""
        return self.by_group.get(TaskGroup(kind, unit, variant, on_gpu))

    def of(self, kind: str) -> list[TaskGroup]:
        """Return the groups of one kind of task that this cluster has executed."""
        return [group for group in self.by_group if group.kind == kind]


def read_rates(artifacts: Artifacts, committed: Iterable[str], kinds: Iterable[str]) -> Rates:
    """Return the rates of tasks of these kinds, from the committed artifacts, or from a sample if there are many."""
    steps = [get_step(kind) for kind in kinds]
    names = {output.kind or step.keyed_by or step.kind for step in steps for output in step.outputs}
    by_name: dict[str, list[str]] = defaultdict(list)
    for key in committed:
        name = key.rpartition(".")[0].removeprefix(RESTRICTED_PREFIX)
        if name in names:
            by_name[name].append(key)
    sample = list[str]()
    for keys in by_name.values():
        sample += sorted(keys, key=lambda key: key.rpartition(".")[2])[:MAX_MANIFESTS]  # by their hash
    tasks: dict[tuple[TaskGroup, str], _Seen] = {}
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="manifests") as pool:
        for producer, num_bytes in filter(None, pool.map(lambda key: _written(artifacts, key), sample)):
            group = TaskGroup(producer.kind, producer.work.unit, producer.work.variant, bool(producer.accelerator))
            seen = tasks.setdefault((group, producer.task_id), _Seen(producer.num_outputs))
            seen.amount = max(seen.amount, producer.work.amount)
            seen.seconds += producer.wall_s
            seen.num_bytes += num_bytes
            seen.num_found += 1
            seen.peak_bytes = max(seen.peak_bytes, producer.peak_bytes)
    groups = grouped((group, seen) for (group, _), seen in tasks.items())
    return Rates({group: _rate(seen) for group, seen in groups.items()})


def _written(artifacts: Artifacts, key: str) -> tuple[_Producer, int] | None:
    """Return the producer and the bytes of an artifact, or None if its manifest is unreadable or incomplete."""
    try:
        manifest = artifacts.manifest(key)
        return _Producer.model_validate(manifest.producer), sum(entry.num_bytes for entry in manifest.files.values())
    except (DamagedError, NotFoundError, RestrictedError, ValidationError):
        return None


def _rate(tasks: list[_Seen]) -> Rate:
    work = sum(seen.amount * min(1.0, seen.num_found / seen.num_outputs) for seen in tasks)
    seconds, num_bytes = (sum(getattr(seen, name) for seen in tasks) / work for name in ("seconds", "num_bytes"))
    complete = sorted(seen.seconds / seen.amount for seen in tasks if seen.num_found >= seen.num_outputs)
    if len(complete) < _ENOUGH_TASKS:
        spread = Range.around(seconds, 0.5, 2.0)
    else:
        low, high = (complete[round(share * (len(complete) - 1))] for share in (0.1, 0.9))
        spread = Range(seconds, min(low, _LEAST[0] * seconds), max(high, _LEAST[1] * seconds))
    return Rate(spread, Range.around(num_bytes, *_LEAST), len(tasks), max(seen.peak_bytes for seen in tasks))
