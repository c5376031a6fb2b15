"""Values that Python code gives, as numbers, texts and lists: those of NumPy, PyTorch, Arrow and pandas among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from poolbench.errors import InputError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def of_plain_values(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that also accepts numbers and texts of NumPy, PyTorch and Arrow, converted to Python's."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return call


def plain(value: Any) -> Any:
    """Return a value with Python's own numbers, texts, lists and dictionaries; other objects stay as they are.

    An array stays an array. Within a dictionary, it becomes a list, because dictionaries hold requests.
    """
    if isinstance(value, Mapping):
        return {plain(name): _within(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "as_py"):  # a scalar of Arrow
        return value.as_py()
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _within(value: Any) -> Any:
    value = plain(value)
    return value.tolist() if getattr(value, "ndim", 0) and hasattr(value, "tolist") else value


def listed(values: Any, name: str) -> list[Any]:
    """Return the entries of a list, a column or a generator. Errors contain `name`.

    Raise InputError for a container whose entries, or their order, are ambiguous, such as a set or a table.
    """
    is_unclear = isinstance(values, Mapping | set | frozenset | bytes) or hasattr(values, "columns")
    if is_unclear or getattr(values, "ndim", 1) != 1 or not hasattr(values, "__iter__"):
        raise InputError(f"{name}: {type(values).__name__} is not a list of them; give a list, or one column")
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return [plain(entry) for entry in values]
