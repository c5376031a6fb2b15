"""Registries: things of one kind that are found by id, the project's own and those of other packages.

Listing one imports no more than the modules that hold the project's own and the plug-ins that are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from poolbench.errors import ConfigError, UnknownNameError


class Named(Protocol):
    """What can be registered."""

    @property
    def id(self) -> str:
        """What it is found by."""


T = TypeVar("T", bound=Named)
Unknown = Callable[[str, Iterable[str]], UnknownNameError]


class Registry(Generic[T]):
    """Things of one kind, in the order in which they were added.

    Args:
        kind: What one of them is called in messages.
        of: Their class.
        group: Entry points of other packages: each names a thing, a function that returns or registers some, or a
            module that registers some when it is imported.
        built_in: Modules that register the project's own, imported at the first look-up.
        unknown: The error for a name that is not registered, from that name and the known ones.
    """

    def __init__(
        self, kind: str, of: type[T], *, group: str, built_in: Iterable[str], unknown: Unknown | None = None
    ) -> None:
        self.kind, self.group = kind, group
        self._of, self._built_in, self._unknown = of, tuple(built_in), unknown
        self._items: dict[str, T] = {}
        self._loaded_points: set[EntryPoint] = set()
        self._loaded, self._lock = False, RLock()

    def add(self, item: T) -> T:
        """Registers one.

        Raises:
            ConfigError: If its id is taken.
        """
        if item.id in self._items:
            raise ConfigError(f"{self.kind} {item.id!r} is registered twice; choose another id")
        self._items[item.id] = item
        return item

    def get(self, name: str) -> T:
        """The one of this id.

        Raises:
            UnknownNameError: With the nearest valid ids.
            ConfigError: As ``all`` does.
        """
        self._load()
        if name not in self._items:
            raise self._unknown(name, self._items) if self._unknown else UnknownNameError(self.kind, name, self._items)
        return self._items[name]

    def all(self) -> list[T]:
        """Every one.

        Raises:
            ConfigError: Naming the package whose plug-in cannot be loaded, or takes an id that is taken.
        """
        self._load()
        return list(self._items.values())

    def _load(self) -> None:
        with self._lock:
            if self._loaded:
                return
            self._loaded = True  # a plug-in that looks something up finds what is there
            try:
                for module in self._built_in:
                    import_module(module)
                for point in entry_points(group=self.group):
                    self._load_plugin(point)
            except BaseException:
                self._loaded = False
                raise

    def _load_plugin(self, point: EntryPoint) -> None:
        """Loads an entry point once; where it fails half-way, what it had registered is taken out again."""
        if point in self._loaded_points:
            return
        before = dict(self._items)
        try:
            self._fill(point.load())
        except Exception as error:  # whatever a stranger's code raises
            self._items = before
            message = f"{self._name(point)} cannot be loaded: {_describe(error)}; mend or uninstall it"
            raise ConfigError(message) from error
        self._loaded_points.add(point)

    def _fill(self, loaded: Any) -> None:
        if callable(loaded) and not isinstance(loaded, self._of):
            loaded = loaded()
            if loaded is None:
                return
        if isinstance(loaded, self._of):
            if self._items.get(loaded.id) is not loaded:  # a function may return what it has registered
                self.add(loaded)
        elif not isinstance(loaded, ModuleType):
            what = f"a {self.kind}, or a module or function that registers one,"
            raise ConfigError(f"it is a {type(loaded).__name__}; {what} is needed")

    def _name(self, point: EntryPoint) -> str:
        package = f"package {point.dist.name} {point.dist.version}" if point.dist else "a package without metadata"
        return f"{self.kind} plug-in {point.name!r} ({point.value}) of {package}"


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
