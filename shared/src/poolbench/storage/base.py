"""The object-store protocol."""

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from poolbench.contracts.wire import HEALTH_FOLDER
from poolbench.errors import ConfigError, IntegrityError, NotFoundError

_PROBE = f"{HEALTH_FOLDER}/conditional-writes"
STORE_ID = f"{HEALTH_FOLDER}/store-id"
"""Path of the id of a store."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object in a listing."""

    path: str
    size: int
    modified_s: float  # seconds since the epoch, by the clock of the store


class ObjectStore(Protocol):
    """Bytes by slash-separated path. Writes are atomic: a reader sees all of an object or nothing.

    Every method raises StoreError if the store cannot be reached, refuses the credentials or is full.
    """

    uri: str

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Store `data`. With `if_absent`, exactly one of several writers gets True, and the other writers get False."""

    def get(self, path: str) -> bytes:
        """Return the bytes of an object. Raise NotFoundError if no object is stored under `path`."""

    def exists(self, path: str) -> bool:
        """Return whether an object is stored under `path`."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose path starts with `prefix`, in path order."""

    def delete(self, path: str) -> None:
        """Remove an object. It is not an error if the object does not exist."""

    def move(self, source: str, target: str) -> bool:
        """Move an object, or everything below a path. Return False if there is nothing at the path.

        An interrupted move of several objects leaves some objects in either place. `manifest.json` is moved first.
        """

    def blocked(self, path: str) -> str:
        """Return the path at or above `path` that prevents writing an object under `path`, or "" if there is none."""

    def now_s(self, path: str = "") -> float:
        """Return the time in seconds since the epoch, by the clock that dates the objects below `path`."""


def older_than(store: ObjectStore, age_s: float) -> Callable[[ObjectInfo], bool]:
    """Return a function that tests whether an object was written at least `age_s` seconds ago.

    Both times are of the store's clock, so that the clock of this machine may be wrong.
    """
    return lambda info: store.now_s(info.path) - info.modified_s >= age_s


def require_conditional_writes(store: ObjectStore) -> None:
    """Raise ConfigError unless exactly one of several writers of an object succeeds, as commits of artifacts need.

    The check writes a small object. This takes one request if the object exists already, and two otherwise. Call this
    function where a process opens a store for work. StoreError is raised too, so this call also reveals wrong
    credentials.
    """
    if store.put(_PROBE, b"", if_absent=True) and store.put(_PROBE, b"", if_absent=True):
        raise ConfigError(
            f"object store {store.uri} has no conditional writes: it replaced an object although the request had the "
            "header `If-None-Match: *`, so two workers could commit the same artifact. Use an S3 service that supports "
            "this header, or a folder"
        )


def store_id(store: ObjectStore) -> str:
    """Return the random id of a store.

    A store without an id gets an id, and the first writer wins. A copy keeps the id.

    Raise IntegrityError if the id is damaged.
    """
    try:
        raw_id = store.get(STORE_ID)
    except NotFoundError:
        store.put(STORE_ID, secrets.token_hex(16).encode(), if_absent=True)
        raw_id = store.get(STORE_ID)
    if not re.fullmatch(rb"[0-9a-f]{32}", raw_id):
        raise IntegrityError(
            f"object store {store.uri}: {STORE_ID} is damaged; remove it, and the next command writes it"
        )
    return raw_id.decode()
