"""What `run --dry-run` prints: the tasks that are left, and an estimate of what they cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from poolbench.config import Assignment
from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError, UnknownNameError
from poolbench_driver.cli.display import print_table
from poolbench_driver.estimate import Cluster, Estimate, estimate, read_rates
from poolbench_driver.estimate import as_json as estimate_as_json
from poolbench_driver.estimate.hardware import get_gpu
from poolbench_driver.estimate.text import COLUMNS, notes, rows

if TYPE_CHECKING:
    from poolbench_driver.job import Job

_MAX_REPLICAS = 100_000


def cluster_of(gpus: int, gpu_type: str, price_per_gpu_hour: float | None, replicas: str | None) -> Cluster:
    """Return the cluster that the options describe. Raise ConfigError or UnknownNameError for a wrong one."""
    if not 0 <= gpus <= _MAX_REPLICAS:
        raise ConfigError(f"--gpus {gpus}: give a number from 0 to {_MAX_REPLICAS:,}")
    if price_per_gpu_hour is not None and not 0 <= price_per_gpu_hour < float("inf"):
        raise ConfigError(f"--price-per-gpu-hour {price_per_gpu_hour}: give a price of 0 or more")
    return Cluster(gpus, get_gpu(gpu_type) if gpus else None, price_per_gpu_hour, _replicas(replicas))


def show_dry_run(job: Job, cluster: Cluster, named: Sequence[Assignment], *, as_json: bool) -> int:
    """Print what a run would do and cost, as text or as one JSON object; return the exit code.

    Args:
        named: The settings that the command line named by `--set`.
    """
    todo, committed = job.left()
    rates = read_rates(job.session.artifacts, committed, {task.kind for task in todo})
    found = estimate(job.plan, todo, committed, rates, cluster)
    if as_json:
        typer.echo(json.dumps(_json(job, named, len(todo), found), indent=1))
        return Exit.DONE
    typer.echo("\n".join(_heading(job, named, len(todo))))
    if todo:
        print_table(rows(found), COLUMNS)
        typer.echo("\n".join(notes(found)))
    return Exit.DONE


def _heading(job: Job, named: Sequence[Assignment], num_todo: int) -> list[str]:
    from poolbench_driver.plan.steering import generations

    scope = job.plan.scope
    model = scope.model
    return [
        f"protocol {job.config.protocol}, budget {job.config.budget.name}",
        *([f"set {', '.join(map(str, named))}"] if named else []),
        f"model {model.ref.id} ({model.num_blocks} blocks, width {model.width})",
        f"concepts {', '.join(job.config.concepts)}",
        f"{len(scope.strategies)} strategies, layers {scope.layers}"
        + (f", steering at layer {scope.steering_layer}" if scope.steers else ""),
        f"{num_todo} of {len(job.plan.tasks)} tasks to do",
        *([f"texts to generate: {generations(scope)}"] if scope.steers and num_todo else []),
        *filter(None, [job.left_out]),
    ]


def _json(job: Job, named: Sequence[Assignment], num_todo: int, found: Estimate) -> dict[str, Any]:
    scope = job.plan.scope
    return {
        "config_hash": job.config.config_hash(),
        "budget": job.config.budget.name,
        "set": {each.path: each.value for each in named},
        "model": scope.model.ref.id,
        "concepts": list(job.config.concepts),
        "strategies": [spec.id for spec in scope.strategies],
        "tasks": len(job.plan.tasks),
        "tasks_to_do": num_todo,
        "estimate": estimate_as_json(found),
    }


def _replicas(text: str | None) -> dict[str, int]:
    """Return replicas by service from a text such as `prober=8,scorer=2`."""
    found = {}
    for part in filter(None, (text or "").split(",")):
        name, _, number = (each.strip() for each in part.partition("="))
        if name not in SERVICES:
            raise UnknownNameError("service", name, SERVICES)
        if not number.isdecimal() or not 1 <= int(number) <= _MAX_REPLICAS:
            raise ConfigError(f"--replicas {part.strip()}: write it as {name}=<number>, with a number from 1")
        found[name] = int(number)
    return found
