"""One attempt at an artifact: files one after another, then the manifest that commits them all."""

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from poolbench import __version__
from poolbench.errors import BlockedPathError, DamagedError
from poolbench.storage.base import ObjectStore
from poolbench.storage.manifest import FileEntry, Manifest, folder_of, manifest_path

TABLE_FILE = "table.arrow"
SHARD_FILE = "table-{:05d}.arrow"


class ArtifactWriter:
    """Writes the files of an artifact as they come, so that it need not fit into memory.

    They are invisible before `commit`. `discard` removes a failed attempt, and `poolbench-driver gc` a killed one.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self.key = store, key
        self._attempt = uuid.uuid4().hex[:12]
        self._files: dict[str, FileEntry] = {}
        self._num_rows = 0
        self.committed: Manifest | None = None  # as a reader gets it, if this attempt won

    def put(self, name: str, data: bytes) -> None:
        """Write one file."""
        path = f"{folder_of(self.key)}/{self._attempt}/{name}"
        with self._blocked_is_damage():
            self._store.put(path, data)
        sha256 = hashlib.sha256(data).hexdigest()
        self._files[name] = FileEntry(path=path, num_bytes=len(data), sha256=sha256)

    def add_shard(self, table: pa.Table) -> None:
        """Write the next part of a table; the metadata of their schemas may differ."""
        self.put(SHARD_FILE.format(len(self._files)), table_to_bytes(table))
        self._num_rows += table.num_rows

    def commit(
        self,
        *,
        num_rows: int | None = None,
        meta: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> bool:
        """Commit the files as the artifact. If another attempt was first, remove them and return False."""
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
        """Remove what was written."""
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
