"""Registries of named items: the project's own, and those of other packages.

Listing a registry imports only the modules of the project's own items and the installed plug-ins.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from poolbench.errors import ConfigError, UnknownNameError


class Named(Protocol):
    """Anything that can be registered."""

    @property
    def id(self) -> str:
        """Return the name under which the item is registered."""


T = TypeVar("T", bound=Named)
Function = TypeVar("Function", bound=Callable[..., Any])
Unknown = Callable[[str, Iterable[str]], UnknownNameError]


class Registry(Generic[T]):
    """Registered items of one kind, such as strategies, by id.

    Args:
        kind: Name of the kind in messages, such as "strategy".
        of: Class of the items.
        group: Group of the entry points by which other packages register items. An entry point names an item, a
            function that returns or registers items, or a module that registers items when it is imported.
        built_in: Modules that register the project's own items. They are imported at the first look-up.
        unknown: Function that makes the error for an unregistered name, from this name and the registered ids.
        make: Function that makes an item from an id, a function and metadata, for `register`.
        by_id: Whether `all` sorts the items by id. By default, items are in the order of registration.
    """

    def __init__(
        self,
        kind: str,
        of: type[T],
        *,
        group: str,
        built_in: Iterable[str],
        unknown: Unknown | None = None,
        make: Callable[..., T] | None = None,
        by_id: bool = False,
    ) -> None:
        self.kind, self.group = kind, group
        self._of, self._built_in, self._unknown = of, tuple(built_in), unknown
        self._make: Callable[..., T] = make or of
        #: Finds items that no package brings, such as a user's own. It is asked for names that are not registered.
        self.find: Callable[[str], T | None] | None = None
        self._by_id = by_id
        self._items: dict[str, T] = {}
        self._modules: dict[str, str] = {}  # of each item, by id
        self._loaded_points: set[EntryPoint] = set()
        self._loaded, self._lock = False, RLock()

    def add(self, item: T, module: str = "") -> T:
        """Register an item and return it.

        Args:
            item: The item.
            module: Built-in module of the item, which decides its place in `all`, or "" for other packages.

        Raises:
            ConfigError: The item is not of the registry's class, or an item with this id is registered already.
        """
        if not isinstance(item, self._of):
            what = f"a {self.kind} ({self._of.__name__}), or a module or function that registers one,"
            raise ConfigError(f"it is of class {type(item).__name__}; {what} is needed")
        if item.id in self._items:
            raise ConfigError(f"{self.kind} {item.id!r} is registered twice; choose another id")
        self._items[item.id] = item
        self._modules[item.id] = module
        return item

    def register(self, item_id: str, **metadata: Any) -> Callable[[Function], Function]:
        """Return a decorator that registers a function with metadata as an item.

        Raises:
            ConfigError: Raised at the decoration, if the id is registered already or the metadata are contradictory.
        """

        def decorate(function: Function) -> Function:
            self.add(self._make(item_id, function, **metadata), function.__module__)
            return function

        return decorate

    def get(self, name: str) -> T:
        """Return the item with this id. Raise UnknownNameError with the nearest ids, or ConfigError as `all` does."""
        self._load()
        if name in self._items:
            return self._items[name]
        if self.find is not None and (entry := self.find(name)) is not None:
            return entry
        raise self._unknown(name, self._items) if self._unknown else UnknownNameError(self.kind, name, self._items)

    def all(self) -> list[T]:
        """Return all registered items, including items of other packages. Items that only `find` returns are left out.

        Raise ConfigError, with the name of the package, if a plug-in cannot be loaded or uses a registered id.
        """
        self._load()
        return [self._items[name] for name in (sorted(self._items) if self._by_id else self._items)]

    def built_in(self) -> list[T]:
        """Return the project's own items, in the order of `all`."""
        return [item for item in self.all() if self._modules[item.id] in self._built_in]

    def _load(self) -> None:
        with self._lock:
            if self._loaded:
                return
            self._loaded = True  # set first: a plug-in may read the registry while it loads
            try:
                for module in self._built_in:
                    import_module(module)
                # A module that something imported before comes at its place all the same.
                places = {module: place for place, module in enumerate(self._built_in)}
                ordered = sorted(self._items, key=lambda item_id: places.get(self._modules[item_id], len(places)))
                self._items = {item_id: self._items[item_id] for item_id in ordered}
                for point in entry_points(group=self.group):
                    self._load_plugin(point)
            except BaseException:
                self._loaded = False
                raise

    def _load_plugin(self, point: EntryPoint) -> None:
        """Load an entry point once. If loading fails, remove the items that it had registered."""
        if point in self._loaded_points:
            return
        before = dict(self._items)
        try:
            self._fill(point.load())
        except Exception as error:  # code of other packages may raise anything
            self._items = before
            package = f"package {point.dist.name} {point.dist.version}" if point.dist else "a package without metadata"
            plug_in = f"{self.kind} plug-in {point.name!r} ({point.value}) of {package}"
            reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"{plug_in} cannot be loaded: {reason}; repair or uninstall it") from error
        self._loaded_points.add(point)

    def _fill(self, loaded: Any) -> None:
        if callable(loaded) and not isinstance(loaded, self._of):
            loaded = loaded()
            if loaded is None:
                return
        if isinstance(loaded, ModuleType):
            return
        if not (isinstance(loaded, self._of) and self._items.get(loaded.id) is loaded):
            self.add(loaded)  # unless a function returns what it has registered
