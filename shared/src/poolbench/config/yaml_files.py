"""Settings in YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from poolbench.errors import ConfigError

_MAX_VALUES = 100_000
_MAX_YAML = 1_000_000  # characters of a file of settings


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Return the settings in a YAML file by name.

    Raise ConfigError, which names the file as `what`: it is not YAML, not UTF-8, too large, or not a mapping.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_YAML + 1)
        if len(text) > _MAX_YAML:
            raise ConfigError(f"{what} {path}: settings may have at most {_MAX_YAML:,} characters")
        values = yaml.safe_load(text) or {}
        _require_few_values(values)
    except RecursionError:
        raise ConfigError(f"{what} {path}: too many levels") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # the second for dates and numbers that cannot be
        raise ConfigError(f"{what} {path}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what} {path}: expected a mapping of settings, got {type(values).__name__}")
    return {str(field): value for field, value in values.items()}


def _require_few_values(root: Any) -> None:
    """Raise ValueError for more than `_MAX_VALUES` values. A few lines of aliases can stand for billions."""
    todo, seen = [root], 0
    while todo:
        value = todo.pop()
        seen += 1
        if seen > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES:,} values, aliases included")
        if isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            todo += value
