"""Binary files: Arrow tables, safetensors and NumPy arrays."""

import hashlib
import io
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import save
from tests.trials.fuzz.mutate import mutated, mutated_header
from tests.trials.fuzz.worker import Target
from tests.trials.hostile.values import PICKLE

from poolbench.contracts import tables
from poolbench.directions.sae import SparseAutoencoder
from poolbench.errors import PoolbenchError
from poolbench.storage import Artifacts
from poolbench.storage.artifacts import TABLE_FILE, FileEntry, Manifest, folder_of, manifest_path, table_to_bytes
from poolbench.storage.folder import FolderStore
from poolbench_driver.cluster.services import table_of_stream
from poolbench_driver.imports.activation_files import ActivationReader
from poolbench_driver.queries.arrays import load_array
from poolbench_steerer.http.vectors import parse_safetensors

KEY = "fuzz.0"
#: What Python code may meet in a table that is whole, but of other types than it expects.
_OTHER_TYPES = (pa.ArrowException, ValueError, ArithmeticError, TypeError, AttributeError, LookupError)


@cache
def _tables() -> tuple[pa.Table, ...]:
    vector = np.arange(8, dtype=np.float32).tolist()
    rows = [{"passage_id": f"p{n}", "vector": None if n == 3 else vector, "applied": True} for n in range(9)]
    states = [{"passage_id": "a", "token_ids": [1, 2], "hidden": [vector, vector], "signals": [("s", [0.5, 1.0])]}]
    texts = [{"text_id": "t", "text": "some text, é", "token_ids": [1, 2, 3], "strength": 0.5}]
    return (
        tables.table_from_rows(rows, tables.vectors_schema(8)),
        tables.table_from_rows(states, tables.states_schema(8)),
        tables.table_from_rows(texts, tables.TEXTS),
        tables.table_from_rows([{"passage_id": "x", "signal": [{"start": 0, "end": 1}]}], tables.PASSAGES),
    )


@cache
def _files() -> tuple[bytes, ...]:
    """Arrow files as the store has them, and without compression, where mutations reach the values."""
    return tuple(table_to_bytes(table) for table in _tables()) + tuple(map(_plain, _tables()))


def _plain(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@cache
def _streams() -> tuple[bytes, ...]:
    found = []
    for table in _tables():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        found.append(sink.getvalue().to_pybytes())
    return tuple(found)


def _read_table(data: bytes, folder: Path) -> None:
    """Read a table whose manifest was forged with its hash, so that nothing stops it before Arrow does."""
    store = FolderStore(folder)
    place = folder / folder_of(KEY) / "a"
    place.mkdir(parents=True)
    (place / TABLE_FILE).write_bytes(data)
    entry = FileEntry(
        path=f"{folder_of(KEY)}/a/{TABLE_FILE}", num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
    )
    manifest = Manifest(key=KEY, attempt="a", files={TABLE_FILE: entry}, created_at="2026-01-01T00:00:00+00:00")
    (folder / manifest_path(KEY)).write_bytes(manifest.to_bytes())
    artifacts = Artifacts(store)
    artifacts.verify(KEY)
    _use(artifacts.read_table(KEY))


def _read_stream(data: bytes, folder: Path) -> None:
    _use(table_of_stream(data))


def _use(table: pa.Table) -> None:
    """Touch every value of a table, as its readers do."""
    try:
        table.to_pylist()
        if "vector" in table.column_names:
            tables.vector_matrix(table["vector"])
        tables.parts_of(table)
    except _OTHER_TYPES:
        return


@cache
def _tensors() -> bytes:
    vectors = np.ones((2, 4), np.float32)
    return bytes(save({"a": vectors[0], "b": vectors, "h": vectors.astype(np.float16)}))


@cache
def _weights() -> bytes:
    ones = np.ones((4, 3), np.float32)
    return bytes(save({"W_enc": ones, "W_dec": ones.T.copy(), "b_dec": ones[:, 0].copy(), "b_enc": ones[0].copy()}))


def _header_of(data: bytes, rng: random.Random) -> bytes:
    """Mutate mostly the JSON header of safetensors: sizes, types, shapes and offsets."""
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.5:
        changes = ((b"F32", rng.choice((b"BF16", b"I64", b"F8_E4M3", b"BOOL"))), (b"4", b"%d" % rng.getrandbits(64)))
        old, new = rng.choice((*changes, (b"2", b"0"), (b"[", b"[-"), (b"data_offsets", b"data_offset")))
        header = data[8 : 8 + size].replace(old, new, rng.choice((1, 1, 2)))
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    return mutated_header(data, 0, 8 + size, rng) if rng.random() < 0.7 else mutated(data, rng)


def _read_vectors(data: bytes, folder: Path) -> None:
    labels, arrays = parse_safetensors(data)
    assert len(labels) == len(arrays)


def _read_autoencoder(data: bytes, folder: Path) -> None:
    found = SparseAutoencoder.from_bytes(data, b'{"architecture": "standard"}')
    found.decode(found.encode(np.zeros((2, found.width), np.float32)))


@cache
def _arrays() -> tuple[bytes, ...]:
    found: list[np.ndarray] = [
        np.ones((3, 4)),
        np.ones((2, 3, 4), np.float16),
        np.array([0, 1, 1]),
        np.array(["a", "b"]),
    ]
    return tuple(map(_npy, found))


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _make_array(rng: random.Random) -> bytes:
    data = rng.choice(_arrays())
    if rng.random() < 0.3:
        header = rng.choice(
            (b"(4294967296, 4294967296)", b"(99999999999,)", b"(-1, 4)", b"(0, 4)", b"(True, 4)", b"(3,)")
        )
        kind = rng.choice((b"|O", b"<f8", b"<U9999999", b"<M8[ns]", b"V0", b"S99999999", b">c16", b"[('a', '|O')]"))
        text = b"{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (kind, header)
        text = text.replace(b"'[(", b"[(").replace(b")]'", b")]").ljust(117) + b"\n"
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rng.choice((PICKLE, b"\0" * 96))
    return mutated_header(data, 0, 128, rng) if rng.random() < 0.6 else mutated(data, rng)


def _read_array(data: bytes, folder: Path) -> None:
    """Read the array as each command does that takes one."""
    file = folder / "array.npy"
    file.write_bytes(data)
    for read in (
        lambda: load_array(file, 2).astype("float64"),
        lambda: load_array(file, 1, "biufU").tolist(),
        lambda: ActivationReader((0,)).read(file),
    ):
        try:
            read()
        except PoolbenchError as error:
            assert str(error)


TARGETS = (
    Target("Arrow file", lambda rng: mutated(rng.choice(_files()), rng), _read_table),
    Target("Arrow stream", lambda rng: mutated(rng.choice(_streams()), rng), _read_stream),
    Target("safetensors of vectors", lambda rng: _header_of(_tensors(), rng), _read_vectors),
    Target("safetensors of an autoencoder", lambda rng: _header_of(_weights(), rng), _read_autoencoder),
    Target("npy", _make_array, _read_array),
)
