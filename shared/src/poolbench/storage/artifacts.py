"""Artifacts: immutable results under their derivation key, committed by a manifest written last.

Layout: `artifacts/<key>/<attempt>/<file>` and `artifacts/<key>/manifest.json`. The manifest is created conditionally,
so exactly one attempt wins and a late duplicate adopts the winner. A reader checks the hashes in it.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from poolbench import __version__
from poolbench.contracts.wire import ARTIFACTS_FOLDER, MANIFEST_FILE
from poolbench.errors import BlockedPathError, DamagedError, NotFoundError
from poolbench.storage.base import ObjectInfo, ObjectStore

CHECKSUM = "checksum"
TABLE_FILE = "table.arrow"
SHARD_FILE = "table-{:05d}.arrow"

#: Files of fewer bytes are written without a look at what is committed. It would be one request in three.
_SMALL_BYTES = 1 << 20


def seal(content: str | bytes) -> bytes:
    """Return a JSON object with the checksum of all its fields added."""
    fields = from_json(content)
    return json.dumps({**fields, CHECKSUM: _checksum(fields)}).encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the fields of a sealed JSON object, without the checksum.

    Raise ValueError if the bytes are not a JSON object, or the checksum is wrong or missing.
    """
    fields = from_json(data)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    checksum = fields.pop(CHECKSUM, None)
    if checksum != _checksum(fields):
        raise ValueError("its checksum is missing" if checksum is None else "it does not match its checksum")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


MANIFEST_VERSION = 2


class OtherVersionError(ValueError):
    """Another version of PoolBench wrote a file."""


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

    def to_bytes(self) -> bytes:
        """Return the manifest as stored, with its checksum."""
        return seal(self.model_dump_json())

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse the manifest of `key`. Raise ValueError if the manifest is damaged, or belongs to another artifact."""
        manifest = cls.model_validate(unseal(data))
        if manifest.schema_version != MANIFEST_VERSION:
            raise OtherVersionError(
                f"its manifest has version {manifest.schema_version}, and this PoolBench reads {MANIFEST_VERSION}"
            )
        if manifest.key != key:
            raise ValueError(f"it is the manifest of {manifest.key[:80]}")
        if not all(entry.path.startswith(f"{folder_of(key)}/") for entry in manifest.files.values()):
            raise ValueError("it names a file outside of the artifact")
        return manifest


def folder_of(key: str) -> str:
    """Return the folder of an artifact in the store."""
    return f"{ARTIFACTS_FOLDER}/{key}"


def manifest_path(key: str) -> str:
    """Return the path of an artifact's manifest."""
    return f"{folder_of(key)}/{MANIFEST_FILE}"


class ArtifactWriter:
    """Writes the files of an artifact one by one, so that the artifact need not fit into memory.

    The files are invisible before `commit`. `discard` removes the files of a failed attempt. `poolbench-driver gc`
    removes the files of a killed attempt.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self.key = store, key
        self._attempt = uuid.uuid4().hex[:12]
        self._files: dict[str, FileEntry] = {}
        self._num_rows = 0
        self.committed: Manifest | None = None  # as a reader gets it, if this attempt won

    def put(self, name: str, data: bytes) -> None:
        """Write a file of the artifact."""
        path = f"{folder_of(self.key)}/{self._attempt}/{name}"
        with self._blocked_is_damage():
            self._store.put(path, data)
        sha256 = hashlib.sha256(data).hexdigest()
        self._files[name] = FileEntry(path=path, num_bytes=len(data), sha256=sha256)

    def add_shard(self, table: pa.Table) -> None:
        """Write the next part of a table. The schemas of the parts may differ in their metadata."""
        self.put(SHARD_FILE.format(len(self._files)), table_to_bytes(table))
        self._num_rows += table.num_rows

    def commit(
        self,
        *,
        num_rows: int | None = None,
        meta: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> bool:
        """Commit the files as the artifact. If another attempt was first, remove the files and return False."""
        manifest = Manifest(
            key=self.key,
            attempt=self._attempt,
            files=self._files,
            num_rows=self._num_rows or num_rows,
            meta=dict(meta or {}),
            producer={"code_version": __version__, **(producer or {})},
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        data = manifest.to_bytes()
        with self._blocked_is_damage():
            won = self._store.put(manifest_path(self.key), data, if_absent=True)
        if won:
            self.committed = Manifest.from_bytes(data, self.key)
        else:
            self.discard()
        return won

    @contextmanager
    def _blocked_is_damage(self) -> Iterator[None]:
        try:
            yield
        except BlockedPathError as error:
            raise DamagedError(self.key, str(error)) from None

    def discard(self) -> None:
        """Remove all files that this attempt has written."""
        for entry in self._files.values():
            self._store.delete(entry.path)
        self._files = {}


def table_to_bytes(table: pa.Table) -> bytes:
    """Return a table as a zstd-compressed Arrow IPC file."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def table_from_bytes(data: bytes) -> pa.Table:
    """Return the table in an Arrow IPC file.

    Offsets and texts are checked, because Arrow trusts them and a wrong offset would end the process. Raise
    ArrowException, OSError or ValueError for bytes that are not a table.
    """
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    table.validate(full=True)
    return table


class Artifacts:
    """Reads and writes artifacts in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def exists(self, key: str) -> bool:
        """Return whether an artifact is committed under `key`."""
        return self.store.exists(manifest_path(key))

    def objects(self) -> Iterator[tuple[str, ObjectInfo]]:
        """Yield the key of the artifact and the object, for each object that belongs to an artifact."""
        for info in self.store.list(f"{ARTIFACTS_FOLDER}/"):
            yield info.path.split("/")[1], info

    def manifest(self, key: str) -> Manifest:
        """Return the manifest of `key`.

        Raise NotFoundError if there is no such artifact, or DamagedError if it is damaged.
        """
        try:
            return Manifest.from_bytes(self.store.get(manifest_path(key)), key)
        except NotFoundError:
            raise NotFoundError(f"artifact {key} does not exist in {self.store.uri}") from None
        except OtherVersionError as error:
            raise DamagedError(key, str(error)) from None
        except ValueError:
            raise DamagedError(key, "its manifest is damaged") from None

    def write(
        self,
        key: str,
        files: Mapping[str, bytes],
        *,
        num_rows: int | None = None,
        meta: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Commit `files` under `key`. If another attempt was first, its artifact is used. Return the manifest."""
        if sum(map(len, files.values())) > _SMALL_BYTES and self.exists(key):
            return self.manifest(key)
        writer = self.writer(key)
        for name, data in files.items():
            writer.put(name, data)
        writer.commit(num_rows=num_rows, meta=meta, producer=producer)
        return writer.committed or self.manifest(key)

    def writer(self, key: str) -> ArtifactWriter:
        """Return a writer for a new attempt at `key`, which writes the files one by one."""
        return ArtifactWriter(self.store, key)

    def read(self, key: str, name: str) -> bytes:
        """Return the bytes of a file of an artifact.

        Raise NotFoundError if there is no such artifact or file, or DamagedError if the artifact is damaged.
        """
        return self._read(self.manifest(key), name)

    def verify(self, key: str) -> None:
        """Read every file of an artifact, and parse its tables.

        Raise NotFoundError if there is no such artifact, or DamagedError if a file is missing or damaged.
        """
        manifest = self.manifest(key)
        _require_files(manifest)
        for name in manifest.files:
            if name.endswith(".arrow"):
                self._table(manifest, name)
            else:
                self._read(manifest, name)

    def _read(self, manifest: Manifest, name: str) -> bytes:
        key, files = manifest.key, manifest.files
        if name not in files:
            raise NotFoundError(f"artifact {key} has no file {name!r}; it has {', '.join(files)}")
        entry = files[name]
        try:
            data = self.store.get(entry.path)
        except NotFoundError:
            raise DamagedError(key, f"{name} is gone") from None
        if len(data) != entry.num_bytes:
            raise DamagedError(key, f"{name} has {len(data)} bytes, its manifest says {entry.num_bytes}")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise DamagedError(key, f"{name} does not match the hash in its manifest")
        return data

    def _table(self, manifest: Manifest, name: str) -> pa.Table:
        data = self._read(manifest, name)
        try:
            return table_from_bytes(data)
        except (pa.ArrowException, OSError, ValueError):
            raise DamagedError(manifest.key, f"{name} is not a table") from None

    def write_table(
        self,
        key: str,
        table: pa.Table,
        *,
        meta: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Commit a table under `key`, as an Arrow IPC file. Return the manifest, as `write` does."""
        data = table_to_bytes(table)
        return self.write(key, {TABLE_FILE: data}, num_rows=table.num_rows, meta=meta, producer=producer)

    def read_table(self, key: str) -> pa.Table:
        """Return the table of an artifact, with all shards concatenated."""
        return pa.concat_tables(self.read_shards(key))

    def read_shards(self, key: str) -> Iterator[pa.Table]:
        """Yield the shards of an artifact's table in order. Each shard is read when it is needed."""
        manifest = self.manifest(key)
        _require_files(manifest)
        names = [name for name in sorted(manifest.files) if name.endswith(".arrow")]
        for name in names or [TABLE_FILE]:
            yield self._table(manifest, name)

    def delete(self, key: str) -> None:
        """Remove an artifact. The manifest goes first, so that a reader never sees half of an artifact."""
        self.store.delete(manifest_path(key))
        for info in list(self.store.list(f"{folder_of(key)}/")):
            self.store.delete(info.path)


def _require_files(manifest: Manifest) -> None:
    if not manifest.files:
        raise DamagedError(manifest.key, "its manifest names no file")
