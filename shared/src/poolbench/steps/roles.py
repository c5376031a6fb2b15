"""Roles of artifacts in a task: typed addresses, written as `train/A1_mean/3` in messages."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

Split = Literal["train", "test"]
AnySplit = Literal["train", "test", "scorer"]


class Single(NamedTuple):
    """The address of a role that a task has once."""


class OfSplit(NamedTuple):
    """A split of the corpus."""

    split: AnySplit


class OfLayer(NamedTuple):
    """A decoder block, counted from 0.

    -1 is the embedding, and the number of blocks stands for the states after the last norm.
    """

    layer: int


class OfConcept(NamedTuple):
    """A concept."""

    concept: str


class OfStrategy(NamedTuple):
    """A pooling strategy."""

    strategy: str


class Cell(NamedTuple):
    """A pooling strategy at a layer."""

    strategy: str
    layer: int


class SplitCell(NamedTuple):
    """A split, pooled by a strategy at a layer."""

    split: Split
    strategy: str
    layer: int

    @property
    def cell(self) -> Cell:
        """Return the strategy and layer."""
        return Cell(self.strategy, self.layer)


class Named(NamedTuple):
    """A name chosen by the sender of the task. The name may contain slashes."""

    name: str


Address = TypeVar("Address", bound=tuple[Any, ...])


class Role(Generic[Address]):
    """A family of roles with typed fields.

    Args:
        template: The text of a role, with the fields of `address` in braces: `train/{strategy}/{layer}`.
        address: NamedTuple of the fields. An `int` matches digits with an optional sign, a `Literal` matches its words,
            and a `str` matches any text without a slash. The name of `Named` may contain slashes.
    """

    def __init__(self, template: str, address: type[Address]) -> None:
        self.template = template
        self.address = address
        self._types = get_type_hints(address) if issubclass(address, tuple) else {}
        pattern = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
        for field, kind in self._types.items():
            pattern = pattern.replace(f"{{{field}}}", f"(?P<{field}>{_pattern(kind, address)})")
        self._pattern = re.compile(pattern)

    def __call__(self, *fields: Any) -> str:
        """Return the role as text, from the fields of its address in order."""
        return self.template.format(**self.address(*fields)._asdict())  # type: ignore[attr-defined]

    def parse(self, role: str) -> Address | None:
        """Return the address in `role`, or None if it belongs to another family."""
        match = self._pattern.fullmatch(role)
        if match is None:
            return None
        values = match.groupdict()
        fields: list[Any] = [int(values[name]) if kind is int else values[name] for name, kind in self._types.items()]
        return self.address(*fields)

    def among(self, roles: Iterable[str]) -> Iterator[tuple[str, Address]]:
        """Yield the roles of this family in sorted order, each with its address."""
        for role in sorted(roles):
            address = self.parse(role)
            if address is not None:
                yield role, address

    def __str__(self) -> str:
        return self.template.replace("{", "<").replace("}", ">")


def _pattern(kind: Any, address: type) -> str:
    if get_origin(kind) is Literal:
        return "|".join(map(re.escape, get_args(kind)))
    if kind is int:
        return "-?[0-9]{1,6}"
    return ".+" if address is Named else "[^/]+"
