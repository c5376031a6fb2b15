"""What `run --dry-run` prints: the tasks that are left, and an estimate of what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from shutil import disk_usage
from typing import TYPE_CHECKING, Any

import typer

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError, UnknownNameError
from poolbench.storage.opening import folder_of_store
from poolbench_driver.cli.tables import print_data, print_table
from poolbench_driver.config import Assignment
from poolbench_driver.contract.abilities import Need, lines
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Description
from poolbench_driver.estimate import ClusterSize, Estimate, estimate, joined, read_rates
from poolbench_driver.estimate import as_json as estimate_as_json
from poolbench_driver.estimate.text import COLUMNS, notes, rows, size
from poolbench_driver.stages.stage import first_notes

if TYPE_CHECKING:
    from poolbench_driver.job import Job

_MAX_REPLICAS = 100_000
_TEXTS = {"null": "along null directions"}


def cluster_of(gpus: int, price_per_gpu_hour: float | None, replicas: str | None) -> ClusterSize:
    """Return the cluster that the options describe. Raise ConfigError or UnknownNameError for a wrong one."""
    if not 0 <= gpus <= _MAX_REPLICAS:
        raise ConfigError(f"--gpus {gpus}: give a number from 0 to {_MAX_REPLICAS:,}")
    if price_per_gpu_hour is not None and not 0 <= price_per_gpu_hour < float("inf"):
        raise ConfigError(f"--price-per-gpu-hour {price_per_gpu_hour}: give a price of 0 or more")
    return ClusterSize(gpus, price_per_gpu_hour, _replicas(replicas))


def show_dry_run(
    jobs: Sequence[Job], cluster: ClusterSize, named: Sequence[Assignment], missing: Sequence[Need], *, as_json: bool
) -> int:
    """Print what the runs would do and cost together, as text or as one JSON object; return the exit code.

    Args:
        jobs: One run for each model. Work that two of them share counts once.
        named: The settings that the command line named by `--set`.
        missing: What the runs lack here.
    """
    parts = _estimated(jobs, cluster)
    total = joined([part.estimate for part in parts])
    if as_json:
        content = _json(parts, named, total) | {"missing": [asdict(need) for need in missing]}
        print_data(content, content["estimate"]["stages"])
        return Exit.DONE
    for part in parts:
        typer.echo("\n".join(_heading(part, named)))
    if absent := lines(missing):
        typer.echo("\n".join(absent))
    if len(parts) > 1:
        typer.echo(
            f"together: {sum(len(part.todo) for part in parts)} tasks to do, texts to generate: {_said(_texts(parts))}"
        )
    if any(part.todo for part in parts):
        print_table(rows(total), COLUMNS)
        typer.echo("\n".join([*notes(total), *_disk(jobs[0].session.settings.store_uri)]))
    return Exit.DONE


def _disk(store: str) -> list[str]:
    """Return a line with the free bytes of the object store's disk if the store is a folder of this machine."""
    folder = folder_of_store(store)
    if folder is None or not folder.is_dir():
        return []
    return [f"disk: {size(disk_usage(folder).free)} are free in the object store"]


@dataclass(frozen=True)
class _Part:
    """One run: what is left of it, without what the runs before it do, and the estimate of that."""

    job: Job
    todo: list[Task]
    estimate: Estimate

    @cached_property
    def description(self) -> Description:
        """Return what the suite says about the plan."""
        return SUITES.get(self.job.config.suite).load().describe(self.job.plan)


def _estimated(jobs: Sequence[Job], cluster: ClusterSize) -> list[_Part]:
    parts: list[_Part] = []
    before = set[str]()  # keys that the runs before make
    for job in jobs:
        left, committed = job.left()
        todo = [task for task in left if not before.issuperset(task.outputs.values())]
        rates = read_rates(job.session.artifacts, committed, {task.kind for task in todo})
        parts.append(_Part(job, todo, estimate(job.plan, todo, committed | before, rates, cluster)))
        before |= job.plan.keys
    return parts


def _texts(parts: Iterable[_Part]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part.description.texts)
    return dict(total)


def _said(texts: Mapping[str, int]) -> str:
    parts = ", ".join(f"{number:,} {_TEXTS.get(name, name)}" for name, number in texts.items())
    return f"{sum(texts.values()):,} ({parts})"


def _heading(part: _Part, assignments: Sequence[Assignment]) -> list[str]:
    job, num_todo, model = part.job, len(part.todo), part.job.plan.facts.model
    texts = part.description.texts
    return [
        f"protocol {job.config.protocol}, budget {job.config.budget.name}",
        *([f"set {', '.join(map(str, assignments))}"] if assignments else []),
        f"model {model.ref.id} ({model.num_blocks} blocks, width {model.width})",
        *part.description.lines,
        f"{num_todo} of {len(job.plan.tasks)} tasks to do",
        *([f"texts to generate: {_said(texts)}"] if any(texts.values()) and num_todo else []),
        *first_notes(job.plan.facts.notes),
    ]


def _json(parts: Sequence[_Part], assignments: Sequence[Assignment], total: Estimate) -> dict[str, Any]:
    """Return one object: of one run its settings and estimate; of several those of each, and the sum."""
    common = {"set": {assignment.path: assignment.value for assignment in assignments}}
    if len(parts) == 1:
        return {**_own_json(parts[0]), **common, "estimate": estimate_as_json(total)}
    return {
        **common,
        "runs": [{**_own_json(part), "estimate": estimate_as_json(part.estimate)} for part in parts],
        "tasks_to_do": sum(len(part.todo) for part in parts),
        "texts": _texts(parts),
        "estimate": estimate_as_json(total),
    }


def _own_json(part: _Part) -> dict[str, Any]:
    job = part.job
    return {
        "config_hash": job.config.config_hash(),
        "budget": job.config.budget.name,
        "model": job.plan.facts.model.ref.id,
        **part.description.fields,
        "tasks": len(job.plan.tasks),
        "tasks_to_do": len(part.todo),
        "texts": dict(part.description.texts),
    }


def _replicas(text: str | None) -> dict[str, int]:
    """Return replicas by service from a text such as `prober=8,scorer=2`."""
    replicas = {}
    for part in filter(None, (text or "").split(",")):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in SERVICES:
            raise UnknownNameError("service", name, SERVICES)
        if not number.isdecimal() or not 1 <= int(number) <= _MAX_REPLICAS:
            raise ConfigError(f"--replicas {part.strip()}: write it as {name}=<number>, with a number from 1")
        replicas[name] = int(number)
    return replicas
