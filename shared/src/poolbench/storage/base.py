"""The object-store protocol and how a URI becomes a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlparse

from poolbench.errors import ConfigError


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


def open_store(uri: str) -> ObjectStore:
    """The store that ``uri`` names: a folder (``/data/store``, ``file:///data/store``) or ``s3://bucket/prefix``.

    S3 endpoint and credentials come from POOLBENCH_S3_ENDPOINT, POOLBENCH_S3_ACCESS_KEY and
    POOLBENCH_S3_SECRET_KEY: deployment facts, never part of a configuration file.
    """
    scheme = urlparse(uri).scheme
    if scheme in ("", "file"):
        from poolbench.storage.folder import FolderStore

        return FolderStore(Path(urlparse(uri).path if scheme else uri))
    if scheme == "s3":
        from poolbench.storage.s3 import S3Store

        return S3Store.from_environment(uri)
    raise ConfigError(f"object store {uri!r}: unknown scheme {scheme!r}; use a folder, file:// or s3://bucket/prefix")
