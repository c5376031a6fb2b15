"""An estimate as text for --dry-run."""

from collections.abc import Callable

from poolbench.grouping import grouped
from poolbench.steps import label_of
from poolbench_driver.estimate.amounts import Range
from poolbench_driver.estimate.estimate import LOCAL, Estimate, StageEstimate

COLUMNS = ("stage", "tasks", "work", "hours of work", "GPU hours", "memory", "written", "money")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def rows(run: Estimate) -> list[dict[str, str]]:
    """Return one row per stage, and a row of sums."""
    sums = {"stage": "total", "GPU hours": _shown(run.gpu_hours, _hours), "memory": _memory(run.peak_bytes)}
    sums |= {"written": _shown(run.num_bytes, size)}
    return [*(_row(run, stage) for stage in run.stages), sums]


def notes(run: Estimate) -> list[str]:
    """Return notes on the whole run, and the reasons why figures are missing."""
    cluster = run.cluster
    replicas = ", ".join(f"{number} {name}" for name, number in cluster.replicas.items())
    lines = [f"cluster: {f'{cluster.gpus} GPUs' if cluster.gpus else 'no GPU'}; replicas: {replicas}"]
    if run.elapsed_hours is None:
        lines.append(f"from start to end: unknown; {run.reason}")
    else:
        lines.append(f"from start to end: {_shown(run.elapsed_hours, _hours)} hours")
    if run.peak_bytes is None:
        lines.append("memory of all replicas: unknown; this cluster has no record of some of this work")
    if run.held_gpu_hours is not None:
        lines.append(f"GPU hours from start to end, at work or not: {_shown(run.held_gpu_hours, _hours)}")
    if run.money is not None:
        price = f"{cluster.price_per_gpu_hour:g} per GPU hour"
        lines.append(f"money for all GPUs from start to end, at {price}: {_shown(run.money, _amount)}")
    stages = grouped((stage.reason, _name(stage)) for stage in run.stages if stage.reason)
    return lines + [f"no time for {', '.join(names)}: {reason}" for reason, names in sorted(stages.items())]


def _name(stage: StageEstimate) -> str:
    return "build passages" if stage.kind == LOCAL else label_of(stage.kind)


def _row(run: Estimate, stage: StageEstimate) -> dict[str, str]:
    values = (
        _name(stage),
        f"{stage.num_tasks:,}",
        "" if stage.work is None else f"{stage.work:,.0f} {stage.unit}",
        _shown(stage.hours, _hours),
        _shown(run.gpu_hours_of(stage), _hours),
        _memory(stage.peak_bytes),
        _shown(stage.num_bytes, size),
        _shown(run.cluster.price(run.gpu_hours_of(stage)), _amount),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _shown(quantity: Range | None, form: Callable[[float], str]) -> str:
    """Format a quantity with its range, or return a dash for None."""
    if quantity is None:
        return "-"
    return f"{form(quantity.expected)} ({form(quantity.low)} to {form(quantity.high)})"


def _memory(num_bytes: int | None) -> str:
    return size(num_bytes) if num_bytes else "-"


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
