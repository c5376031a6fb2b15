"""The object-store protocol."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ObjectInfo:
    """One object in a listing."""

    path: str
    size: int
    modified_s: float  # seconds since the epoch


class ObjectStore(Protocol):
    """Bytes by slash-separated path. Writes are atomic: a reader sees all of an object or nothing.

    Every method raises StoreError if the store cannot be reached, refuses the credentials or is full.
    """

    uri: str

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Store `data`. With `if_absent`, exactly one of several writers gets True, the others False."""

    def get(self, path: str) -> bytes:
        """Return the bytes of an object. Raise NotFoundError if there is none."""

    def exists(self, path: str) -> bool:
        """Return whether an object is stored under `path`."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose path starts with `prefix`, in path order."""

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is no error."""

    def move(self, source: str, target: str) -> bool:
        """Move an object, or everything below a path; False if nothing is there.

        An interrupted move of several objects leaves some in either place, and `manifest.json` moves first.
        """
