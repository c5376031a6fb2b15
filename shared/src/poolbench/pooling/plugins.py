"""Strategies of third-party packages, found by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from poolbench.errors import ConfigError

#: Third-party packages put a module that registers their strategies, or a function that does, here.
ENTRY_POINT_GROUP = "poolbench.pooling"

_loaded: set[EntryPoint] = set()


def load_plugins(registered: dict[str, Any]) -> None:
    """Loads every entry point of the group that is not loaded yet; each fills the registry by itself.

    Args:
        registered: The registry, put back as it was when a plug-in fails half-way.

    Raises:
        ConfigError: Naming the package whose plug-in cannot be loaded, or takes an id that is taken.
    """
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point in _loaded:
            continue
        before = dict(registered)
        try:
            _fill(point)
        except Exception as error:  # whatever a stranger's code raises
            registered.clear()
            registered.update(before)
            raise ConfigError(f"{_name(point)} cannot be loaded: {_describe(error)}; mend or uninstall it") from error
        _loaded.add(point)


def _fill(point: EntryPoint) -> None:
    loaded = point.load()
    if callable(loaded):
        loaded()
    elif not isinstance(loaded, ModuleType):
        raise ConfigError(f"it is a {type(loaded).__name__}; a module or a function that registers is needed")


def _name(point: EntryPoint) -> str:
    package = f"package {point.dist.name} {point.dist.version}" if point.dist else "a package without metadata"
    return f"pooling plug-in {point.name!r} ({point.value}) of {package}"


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
