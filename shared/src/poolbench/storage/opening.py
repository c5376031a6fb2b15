"""Open a store by its URI; its operations are measured."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

from poolbench.errors import ConfigError, NotFoundError, PoolbenchError
from poolbench.settings import S3Settings
from poolbench.storage.base import ObjectInfo, ObjectStore
from poolbench.storage.folder import FolderStore
from poolbench.telemetry.catalog import STORE_BYTES, STORE_ERRORS, STORE_SECONDS
from poolbench.telemetry.traces import span


def kind_of(uri: str) -> str:
    """Return the kind of the store with this address, by its name in metrics: `s3` or `folder`."""
    return "s3" if uri.startswith("s3://") else "folder"


@contextmanager
def measured(uri: str, operation: str) -> Iterator[None]:
    """Record the duration and the error of a `with` block as an operation of the store at `uri`.

    If `operation` is empty, nothing is recorded.

    NotFoundError does not count as an error of the store.
    """
    if not operation:
        yield
        return
    kind, began = kind_of(uri), time.perf_counter()
    try:
        with span(f"store {operation}"):
            yield
    except NotFoundError:
        raise
    except PoolbenchError as error:
        STORE_ERRORS.add(store=kind, operation=operation, code=error.code)
        raise
    finally:
        STORE_SECONDS.observe(time.perf_counter() - began, store=kind, operation=operation)


def count_bytes(uri: str, operation: str, num_bytes: int) -> None:
    """Count the bytes that an operation moved."""
    STORE_BYTES.add(num_bytes, store=kind_of(uri), operation=operation)


class MeasuredStore:
    """ObjectStore whose operations are counted and timed."""

    def __init__(self, store: ObjectStore) -> None:
        self.uri = store.uri
        self._store = store

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        with measured(self.uri, "put"):
            done = self._store.put(path, data, if_absent=if_absent)
        count_bytes(self.uri, "put", len(data))
        return done

    def get(self, path: str) -> bytes:
        with measured(self.uri, "get"):
            data = self._store.get(path)
        count_bytes(self.uri, "get", len(data))
        return data

    def exists(self, path: str) -> bool:
        with measured(self.uri, "exists"):
            return self._store.exists(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with measured(self.uri, "list"):
            infos = list(self._store.list(prefix))
        yield from infos

    def delete(self, path: str) -> None:
        with measured(self.uri, "delete"):
            self._store.delete(path)

    def move(self, source: str, target: str) -> bool:
        with measured(self.uri, "move"):
            return self._store.move(source, target)

    def blocked(self, path: str) -> str:
        return self._store.blocked(path)

    def now_s(self, path: str = "") -> float:
        return self._store.now_s(path)


def open_store(uri: str) -> ObjectStore:
    """Return the store that `uri` names: a folder (`/data/store`, `file:///data/store`) or `s3://bucket/prefix`.

    S3 endpoint and credentials come from the environment, never from a configuration file. Raise ConfigError for a
    wrong URI or setting.
    """
    if _scheme(uri) == "s3":
        from poolbench.storage.s3 import S3Store

        return MeasuredStore(S3Store(uri, S3Settings.load()))
    return MeasuredStore(FolderStore(_folder(uri)))


def _scheme(uri: str) -> str:
    scheme = urlparse(uri).scheme
    if scheme not in ("", "file", "s3"):
        raise ConfigError(
            f"object store {uri!r}: unknown scheme {scheme!r}; use a folder, file:// or s3://bucket/prefix"
        )
    return scheme


def folder_of_store(uri: str) -> Path | None:
    """Return the folder of a store on a file system, or None for S3 and for an empty URI."""
    return None if uri == "" or _scheme(uri) == "s3" else _folder(uri)


def _folder(uri: str) -> Path:
    return Path(urlparse(uri).path if urlparse(uri).scheme else uri).expanduser().resolve()
