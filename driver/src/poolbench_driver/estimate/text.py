"""An estimate as text for --dry-run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from poolbench.steps import label_of
from poolbench_driver.estimate.estimate import LOCAL, Estimate, StageEstimate
from poolbench_driver.estimate.quantities import Range

COLUMNS = ("stage", "tasks", "work", "hours of work", "GPU hours", "written", "money", "from")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def rows(found: Estimate) -> list[dict[str, str]]:
    """Return one row per stage, and one of the sums."""
    made = [_row(stage) for stage in found.stages]
    busy = found.gpu_hours if found.cluster.gpus else None
    return [*made, {"stage": "total", "GPU hours": _shown(busy, _hours), "written": _shown(found.num_bytes, size)}]


def notes(found: Estimate) -> list[str]:
    """Return what is known of the whole run, and why figures are missing."""
    cluster = found.cluster
    replicas = ", ".join(f"{number} {name}" for name, number in cluster.capacity.replicas.items())
    gpus = f"{cluster.gpus} GPUs ({cluster.gpu.name})" if cluster.gpus and cluster.gpu else "no GPU"
    lines = [f"cluster: {gpus}; replicas: {replicas}"]
    if found.elapsed_hours is None:
        lines.append(f"from start to end: unknown; {found.reason}")
    else:
        lines.append(f"from start to end: {_shown(found.elapsed_hours, _hours)} hours")
    if found.held_gpu_hours is not None:
        lines.append(f"GPU hours from start to end, at work or not: {_shown(found.held_gpu_hours, _hours)}")
    if found.money is not None:
        price = f"{cluster.price_per_gpu_hour:g} per GPU hour"
        lines.append(f"money for all GPUs from start to end, at {price}: {_shown(found.money, _amount)}")
    return [*lines, *_sources(found), *_reasons(found)]


def _sources(found: Estimate) -> Iterator[str]:
    """Yield what the column `from` means, for the sources that occur."""
    sources = {stage.source for stage in found.stages}
    if {"recorded", "both"} & sources:
        machines = "GPUs, where a service has them, and CPUs" if found.cluster.gpus else "CPUs"
        yield f"recorded: times that tasks of the same kind took on this cluster, on {machines}"
    if {"model", "both"} & sources:
        gpu = f", for {found.cluster.gpu.name}" if found.cluster.gpu else ""
        yield f"model: computed from figures of other machines{gpu} (docs/operations/sizing.md)"


def _reasons(found: Estimate) -> Iterator[str]:
    """Yield each reason for missing times once, with the stages that it holds for."""
    stages = defaultdict[str, list[str]](list)
    for stage in found.stages:
        if stage.reason:
            stages[stage.reason].append(_name(stage))
    for reason, names in sorted(stages.items()):
        yield f"no time for {', '.join(dict.fromkeys(names))}: {reason}"


def _name(stage: StageEstimate) -> str:
    return "build passages" if stage.kind == LOCAL else label_of(stage.kind)


def _row(stage: StageEstimate) -> dict[str, str]:
    values = (
        _name(stage),
        f"{stage.num_tasks:,}",
        "" if stage.work is None else f"{stage.work:,.0f} {stage.unit}",
        _shown(stage.hours, _hours),
        _shown(stage.gpu_hours, _hours),
        _shown(stage.num_bytes, size),
        _shown(stage.money, _amount),
        stage.source if stage.source != "none" else "",
    )
    return dict(zip(COLUMNS, values, strict=True))


def _shown(found: Range | None, form: Callable[[float], str]) -> str:
    """Return a quantity with its range; a dash if there is none."""
    return "-" if found is None else f"{form(found.expected)} ({form(found.low)} to {form(found.high)})"


def _hours(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2g}" if value >= 0.001 or not value else "<0.001"


def _amount(value: float) -> str:
    return f"{value:,.2f}"


def size(value: float) -> str:
    """Return a number of bytes in the unit that fits, such as `1.3 GB`."""
    for unit in _UNITS[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {_UNITS[-1]}"
