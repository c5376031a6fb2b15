"""Write tables of vectors as .npy, .parquet or .safetensors: whole, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import vector_matrix
from poolbench.errors import ConfigError, InputError
from poolbench.statuses import Status

Writer = Callable[[pa.Table, Path], None]


def writer_of(file: Path) -> Writer:
    """Return the writer for a file name's suffix; raise ConfigError for another suffix, InputError for the folder."""
    if file.suffix not in WRITERS:
        raise ConfigError(f"{file}: its suffix is {file.suffix or 'missing'!r}; allowed: {', '.join(WRITERS)}")
    if not file.parent.is_dir():
        raise InputError(f"{file}: its folder does not exist; create it first")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise InputError(f"{file} cannot be written: it is a folder, or its folder is not writable")
    return WRITERS[file.suffix]


def write_npy(table: pa.Table, file: Path) -> None:
    """Write float32 [texts, width]; NaN where a text failed. The format has no room for ids or notes."""
    with file.open("wb") as stream:
        np.save(stream, vector_matrix(table["vector"]))


def write_parquet(table: pa.Table, file: Path) -> None:
    """Write every column, null vectors where a text failed, and the notes as metadata of the schema."""
    import pyarrow.parquet as pq

    pq.write_table(table, file)


def write_safetensors(table: pa.Table, file: Path) -> None:
    """Write tensors `vectors` (NaN where a text failed), `ok` and `line`; notes and ids are the file's metadata."""
    from safetensors.numpy import save_file

    tensors = {
        "vectors": vector_matrix(table["vector"]),
        "ok": np.asarray(table["status"].to_pylist()) == Status.OK,
        "line": np.asarray(table["line"], dtype=np.int64),
    }
    notes = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    save_file(tensors, file, metadata={**notes, "ids": json.dumps(table["id"].to_pylist())})


WRITERS: dict[str, Writer] = {".npy": write_npy, ".parquet": write_parquet, ".safetensors": write_safetensors}


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield a file beside `file` that replaces it on success, and is removed otherwise."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield partial
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
