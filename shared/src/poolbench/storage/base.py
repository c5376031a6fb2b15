"""The object-store protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ObjectInfo:
    """What a listing says of one object."""

    path: str
    size: int
    modified_s: float  # seconds since the epoch


class ObjectStore(Protocol):
    """Bytes by slash-separated path. Writes are atomic: a reader sees all of an object or nothing.

    Every method raises StoreError when the store cannot be reached, refuses the credentials or is full.
    """

    uri: str

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Stores ``data``. With ``if_absent`` exactly one of several writers gets True, the others False."""

    def get(self, path: str) -> bytes:
        """The bytes of an object. Raises NotFoundError."""

    def exists(self, path: str) -> bool:
        """Whether an object is stored under ``path``."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose path starts with ``prefix``, in path order."""

    def delete(self, path: str) -> None:
        """Removes an object; a missing one is no error."""

    def move(self, source: str, target: str) -> bool:
        """Moves an object, or everything below a path; False when nothing is there.

        An interrupted move of several objects leaves some in either place, and ``manifest.json`` moves first.
        """
