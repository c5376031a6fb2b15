"""Artifacts: immutable results under their derivation key, committed by a manifest written last.

Layout: `artifacts/<key>/<attempt>/<file>` and `artifacts/<key>/manifest.json`. The manifest is created conditionally,
so exactly one attempt wins and a late duplicate adopts the winner. A reader checks the hashes in it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from poolbench.contracts.wire import ARTIFACTS_FOLDER
from poolbench.errors import DamagedError, NotFoundError
from poolbench.storage.base import ObjectInfo, ObjectStore
from poolbench.storage.manifest import Manifest, OtherVersionError, folder_of, manifest_path
from poolbench.storage.writer import TABLE_FILE, ArtifactWriter, table_from_bytes, table_to_bytes

__all__ = ["Artifacts", "Manifest"]

#: Files of fewer bytes are written without a look at what is committed. It would be one request in three.
_SMALL_BYTES = 1 << 20


class Artifacts:
    """Reads and writes artifacts in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def exists(self, key: str) -> bool:
        """Return whether `key` is committed."""
        return self.store.exists(manifest_path(key))

    def objects(self) -> Iterator[tuple[str, ObjectInfo]]:
        """Yield all objects of artifacts with their keys."""
        for info in self.store.list(f"{ARTIFACTS_FOLDER}/"):
            yield info.path.split("/")[1], info

    def manifest(self, key: str) -> Manifest:
        """Return the manifest of `key`. Raise NotFoundError if it is not committed, DamagedError if it is damaged."""
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
        """Commit `files` under `key`, or adopt what another attempt committed first."""
        if sum(map(len, files.values())) > _SMALL_BYTES and self.exists(key):
            return self.manifest(key)
        writer = self.writer(key)
        for name, data in files.items():
            writer.put(name, data)
        writer.commit(num_rows=num_rows, meta=meta, producer=producer)
        return writer.committed or self.manifest(key)

    def writer(self, key: str) -> ArtifactWriter:
        """Return an attempt at `key` whose files are written one by one."""
        return ArtifactWriter(self.store, key)

    def read(self, key: str, name: str) -> bytes:
        """Return one file of an artifact. Raise NotFoundError or DamagedError."""
        return self._read(self.manifest(key), name)

    def verify(self, key: str) -> None:
        """Read every file of an artifact, and tables as tables. Raise NotFoundError or DamagedError."""
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
        """Commit a table as Arrow IPC."""
        data = table_to_bytes(table)
        return self.write(key, {TABLE_FILE: data}, num_rows=table.num_rows, meta=meta, producer=producer)

    def read_table(self, key: str) -> pa.Table:
        """Return the table of an artifact, all its shards together."""
        return pa.concat_tables(self.read_shards(key))

    def read_shards(self, key: str) -> Iterator[pa.Table]:
        """Yield the shards of a table as they are needed."""
        manifest = self.manifest(key)
        _require_files(manifest)
        names = [name for name in sorted(manifest.files) if name.endswith(".arrow")]
        for name in names or [TABLE_FILE]:
            yield self._table(manifest, name)

    def delete(self, key: str) -> None:
        """Remove an artifact, manifest first so that a reader never sees half of it."""
        self.store.delete(manifest_path(key))
        for info in list(self.store.list(f"{folder_of(key)}/")):
            self.store.delete(info.path)


def _require_files(manifest: Manifest) -> None:
    if not manifest.files:
        raise DamagedError(manifest.key, "its manifest names no file")
