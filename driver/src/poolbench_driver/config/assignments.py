"""Settings of the command line as `path=value`: each stands for one line of a YAML file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from poolbench.config import StrictModel
from poolbench.errors import ConfigError, shown

#: Settings of a file that are no field of a run: they change others.
BESIDE_FIELDS = ("preset", "limit")


@dataclass(frozen=True)
class Assignment:
    """One setting by its path, such as `budget.max_tokens`, and its value."""

    path: str
    value: Any

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings as a file would have them: a setting of a section is a mapping with one entry."""
        section, _, name = self.path.rpartition(".")
        return {section: {name: self.value}} if section else {name: self.value}

    def __str__(self) -> str:
        return f"{self.path}={json.dumps(self.value, default=str)}"


def setting_paths(of: type[StrictModel]) -> list[str]:
    """Return the paths of all settings: the fields of a run, those of its sections, `preset` and `limit`."""
    paths = list(BESIDE_FIELDS)
    for name, field in of.model_fields.items():
        paths.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, StrictModel):
            paths += [f"{name}.{inner}" for inner in field.annotation.model_fields]
    return paths


def read_assignments(texts: Iterable[str]) -> list[Assignment]:
    """Return the settings of texts such as `budget.max_tokens=100`; the value is whatever YAML can say.

    Raises:
        ConfigError: For a text without `=`, a value that is not YAML, or a path that is given twice.
    """
    assignments = dict[str, Assignment]()
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals:
            raise ConfigError(f"--set {shown(text)}: write it as path=value, such as budget.max_tokens=100")
        if path in assignments:
            raise ConfigError(f"--set {path} is given twice; give it once")
        assignments[path] = Assignment(path, _value(path, value))
    return list(assignments.values())


def _value(path: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # the first for dates and numbers that cannot be
        reason = str(error).split("\n")[0]
        raise ConfigError(f"--set {path}={shown(text)}: the value is not YAML ({reason})") from None
