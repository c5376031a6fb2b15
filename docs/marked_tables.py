"""Tables from the code inside pages that are otherwise written by hand: tasks, settings and metrics."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from poolbench.settings import GateSettings, Settings, SteererSettings
from poolbench.steps import SERVICE_STEPS
from poolbench.telemetry.catalog import INSTRUMENTS

Rows = Iterable[Sequence[str]]
Table = Callable[[Sequence[str], Rows], str]
_SETTING_HEAD = ("variable", "meaning", "default")


def architecture(folder: Path, table: Table) -> str:
    """Return the page on the architecture with its table of tasks made again."""
    rows = [
        (
            f"`{step.kind}`",
            str(step.version),
            ", ".join(f"`{role}`" for role in step.inputs),
            ", ".join(f"`{output.role}`" for output in step.outputs),
            step.label,
            step.unit,
            step.summary,
        )
        for step in SERVICE_STEPS.values()
    ]
    page = (folder / "architecture.md").read_text("utf-8")
    return _filled(page, "tasks", table(("kind", "version", "inputs", "outputs", "shown as", "work in", "notes"), rows))


def observability(folder: Path, table: Table) -> str:
    """Return the page on observation with its table of metrics made again."""
    rows = [
        (
            f"`{each.exported}`",
            each.kind,
            each.unit,
            ", ".join(f"`{label.name}`" for label in each.labels),
            each.summary,
        )
        for each in INSTRUMENTS
    ]
    page = (folder / "observability.md").read_text("utf-8")
    return _filled(page, "metrics", table(("name in Prometheus", "kind", "unit", "labels", "meaning"), rows))


def operations(folder: Path, table: Table) -> str:
    """Return the page on settings with its tables of settings made again."""
    page = (folder / "operations" / "settings.md").read_text("utf-8")
    common = [model for model in Settings.models if model not in (GateSettings, SteererSettings)]
    parts = {"settings": common, "settings of the steerer": [SteererSettings], "settings of the gate": [GateSettings]}
    for name, models in parts.items():
        page = _filled(page, name, table(_SETTING_HEAD, [row for model in models for row in _settings(model)]))
    return page


def _filled(page: str, name: str, table: str) -> str:
    """Return a page with a table between the marks of this name."""
    before, rest = page.split(f"<!-- {name} -->")
    after = rest.split(f"<!-- end of {name} -->")[1]
    return f"{before}<!-- {name} -->\n\n{table}\n\n<!-- end of {name} -->{after}"


def _settings(model: type[Settings]) -> Rows:
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        unset = extra["unset"] if isinstance(extra, dict) else _shown(field.default)
        yield f"`{model.variable(name)}`", str(field.description), str(unset)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, int | float) else f"`{default}`"
