"""Artifacts: immutable results under their derivation key, committed by a manifest written last.

Layout: ``artifacts/<key>/<attempt>/<file>`` and ``artifacts/<key>/manifest.json``. Restricted keys (of
sensitive concepts) live under ``restricted/`` instead. The manifest is created conditionally, so exactly one
attempt wins and a late duplicate adopts the winner; a reader checks the hashes in it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poolbench import __version__
from poolbench.contracts.keys import is_restricted
from poolbench.errors import IntegrityError, NotFoundError
from poolbench.storage.base import ObjectStore

MANIFEST_VERSION = 1
TABLE_FILE = "table.arrow"


class FileEntry(BaseModel):
    """One payload file of an artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    num_bytes: int
    sha256: str


class Manifest(BaseModel):
    """What was committed under a key, by whom and how long it took."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = MANIFEST_VERSION
    key: str
    attempt: str
    files: dict[str, FileEntry]
    num_rows: int | None = None
    meta: dict[str, Any] = Field(default_factory=dict)  # what readers need to know: width, model ...
    producer: dict[str, Any] = Field(default_factory=dict)  # task, host, versions, timings
    created_at: str


class Artifacts:
    """Reads and writes artifacts in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def exists(self, key: str) -> bool:
        """Whether ``key`` is committed."""
        return self.store.exists(_manifest_path(key))

    def manifest(self, key: str) -> Manifest:
        """The manifest of ``key``. Raises NotFoundError when it is not committed."""
        try:
            return Manifest.model_validate_json(self.store.get(_manifest_path(key)))
        except NotFoundError:
            raise NotFoundError(f"artifact {key} does not exist in {self.store.uri}") from None
        except ValidationError:
            raise IntegrityError(f"artifact {key}: its manifest is damaged; {self._remedy(key)}") from None

    def write(
        self,
        key: str,
        files: Mapping[str, bytes],
        *,
        num_rows: int | None = None,
        meta: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Commits ``files`` under ``key``, or adopts what another attempt committed first."""
        if self.exists(key):
            return self.manifest(key)
        attempt = uuid.uuid4().hex[:12]
        entries = {}
        for name, data in files.items():
            path = f"{folder_of(key)}/{attempt}/{name}"
            self.store.put(path, data)
            entries[name] = FileEntry(path=path, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        manifest = Manifest(
            key=key,
            attempt=attempt,
            files=entries,
            num_rows=num_rows,
            meta=dict(meta or {}),
            producer={"code_version": __version__, **(producer or {})},
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        won = self.store.put(_manifest_path(key), manifest.model_dump_json().encode(), if_absent=True)
        if not won:
            for entry in entries.values():
                self.store.delete(entry.path)
        return self.manifest(key)

    def read(self, key: str, name: str) -> bytes:
        """One file of an artifact. Raises NotFoundError, or IntegrityError when it was damaged."""
        files = self.manifest(key).files
        if name not in files:
            raise NotFoundError(f"artifact {key} has no file {name!r}; it has {', '.join(files)}")
        entry = files[name]
        try:
            data = self.store.get(entry.path)
        except NotFoundError:
            raise IntegrityError(f"artifact {key}: {name} is gone; {self._remedy(key)}") from None
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise IntegrityError(f"artifact {key}: {name} does not match the hash in its manifest; {self._remedy(key)}")
        return data

    def _remedy(self, key: str) -> str:
        return f"delete {folder_of(key)} in {self.store.uri} and run the same command again"

    def write_table(
        self,
        key: str,
        table: pa.Table,
        *,
        meta: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Commits a table as Arrow IPC."""
        data = table_to_bytes(table)
        return self.write(key, {TABLE_FILE: data}, num_rows=table.num_rows, meta=meta, producer=producer)

    def read_table(self, key: str) -> pa.Table:
        """The table of an artifact."""
        return table_from_bytes(self.read(key, TABLE_FILE))

    def delete(self, key: str) -> None:
        """Removes an artifact, manifest first so that a reader never sees half of it."""
        self.store.delete(_manifest_path(key))
        for info in list(self.store.list(f"{folder_of(key)}/")):
            self.store.delete(info.path)


def folder_of(key: str) -> str:
    """The folder of an artifact in the store."""
    return f"{'restricted' if is_restricted(key) else 'artifacts'}/{key}"


def table_to_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow IPC file, zstd-compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def table_from_bytes(data: bytes) -> pa.Table:
    """The table in an Arrow IPC file."""
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()


def _manifest_path(key: str) -> str:
    return f"{folder_of(key)}/manifest.json"
