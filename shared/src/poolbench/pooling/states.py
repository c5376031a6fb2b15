"""Kept hidden states as Arrow shards: written as passages complete, read back one shard at a time.

Needs NumPy and Arrow only, so that importing states needs no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import HIDDEN_TYPES, error_of, require_columns, states_schema
from poolbench.errors import CellError, InputError
from poolbench.statuses import Status

#: States of one shard before compression: enough for sequential speed, little beside a model.
SHARD_BYTES = 64 << 20

#: NumPy has no bfloat16 either; its bits travel as uint16.
_DTYPES = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16", np.dtype(np.uint16): "bfloat16"}


@dataclass(frozen=True)
class KeptPassage:
    """The hidden states of a passage at a layer, or the error that prevented them."""

    position: int  # row of the passage in its table of passages
    passage_id: str
    hidden_TD: np.ndarray | None = None  # states over all positions: float32, float16, or bits of bfloat16 as uint16
    special: np.ndarray | None = None  # true at tokens that the tokenizer added, [T]
    token_ids: np.ndarray | None = None  # vocabulary ids, [T]; None if unknown
    offsets: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))  # character ranges [T, 2]
    signals: Mapping[str, np.ndarray] = field(default_factory=dict)  # other signals by name; [T] or [H, T]
    error: CellError | None = None  # why the passage has no states


class ShardWriter:
    """Passes passages on to `sink` as STATES tables of about `shard_bytes`. A passage is never split."""

    def __init__(self, sink: Callable[[pa.Table], None], width: int, shard_bytes: int = SHARD_BYTES) -> None:
        self._sink, self._width, self._shard_bytes = sink, width, shard_bytes
        self._pending: list[KeptPassage] = []
        self._num_bytes = 0
        self._dtype = "float32"

    def add(self, passage: KeptPassage) -> None:
        """Add a passage. If its states have another dtype than the previous states, a new shard begins."""
        size = 0
        if passage.hidden_TD is not None:
            size, dtype = passage.hidden_TD.nbytes, _DTYPES[passage.hidden_TD.dtype]
            if self._num_bytes and (self._num_bytes + size > self._shard_bytes or dtype != self._dtype):
                self._flush()
            self._dtype = dtype
        self._pending.append(passage)
        self._num_bytes += size

    def close(self) -> None:
        """Write the remaining passages. If there were no passages at all, write one empty shard."""
        self._flush()

    def _flush(self) -> None:
        self._sink(states_table(self._pending, self._width, self._dtype))
        self._pending, self._num_bytes = [], 0


def states_table(passages: Sequence[KeptPassage], width: int, dtype: str = "float32") -> pa.Table:
    """Return the STATES table of passages whose states share a dtype."""
    signals = [[(n, np.asarray(v, np.float32).reshape(-1)) for n, v in p.signals.items()] for p in passages]
    schema = states_schema(width, dtype)
    columns = {
        "passage_id": [p.passage_id for p in passages],
        "position": [p.position for p in passages],
        "token_ids": [p.token_ids for p in passages],
        "token_start": [p.offsets[:, 0] for p in passages],
        "token_end": [p.offsets[:, 1] for p in passages],
        "special": [p.special for p in passages],
        "hidden": _hidden_column([p.hidden_TD for p in passages], width, dtype),
        "signals": signals,
        "status": [p.error.status if p.error else Status.OK for p in passages],
        "reason": [str(p.error) if p.error else None for p in passages],
    }
    arrays = [c if isinstance(c, pa.Array) else pa.array(c, schema.field(name).type) for name, c in columns.items()]
    return pa.Table.from_arrays(arrays, schema=schema)


def _hidden_column(states: Sequence[np.ndarray | None], width: int, dtype: str) -> pa.ListArray:
    """Make nested lists from flat memory, without Python objects for the numbers."""
    lengths = [0 if h_TD is None else len(h_TD) for h_TD in states]
    parts = [h_TD.reshape(-1) for h_TD in states if h_TD is not None]
    kind = HIDDEN_TYPES[dtype]
    flat = pa.array(np.concatenate(parts), kind) if parts else pa.array([], kind)
    vectors = pa.FixedSizeListArray.from_arrays(flat, width)
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(bounds, vectors, mask=pa.array([h_TD is None for h_TD in states], pa.bool_()))


def read_states(shard: pa.Table) -> list[KeptPassage]:
    """Return the passages of a shard with their states as float32.

    Raise InputError if the table does not hold kept states.
    """
    require_columns(shard, states_schema(1), "the kept states")
    hidden = _hidden_matrices(shard)
    return [
        KeptPassage(
            position=row["position"],
            passage_id=row["passage_id"],
            hidden_TD=h_TD,
            special=_array(row["special"], np.bool_),
            token_ids=_array(row["token_ids"], np.int64),
            offsets=np.stack([row["token_start"], row["token_end"]], axis=1).astype(np.int64),
            signals={name: np.asarray(values, np.float32) for name, values in row["signals"] or ()},
            error=None if row["status"] == Status.OK else error_of(row),
        )
        for row, h_TD in zip(shard.drop_columns(["hidden"]).to_pylist(), hidden, strict=True)
    ]


def width_of(shard: pa.Table) -> int:
    """Return the width D of the states. Raise InputError if column `hidden` holds no states."""
    kind = shard.schema.field("hidden").type
    if not (pa.types.is_list(kind) and pa.types.is_fixed_size_list(kind.value_type)):
        raise InputError(f"kept states: column hidden is {kind}; it must be list<fixed_size_list<number>>")
    return int(kind.value_type.list_size)


def _hidden_matrices(shard: pa.Table) -> list[np.ndarray | None]:
    """Return each row's states as float32 [T, D], without Python floats."""
    width, dtype = width_of(shard), (shard.schema.metadata or {}).get(b"hidden_dtype", b"float32").decode()
    value_type = shard.schema.field("hidden").type.value_type.value_type
    if HIDDEN_TYPES.get(dtype) != value_type:
        raise InputError(f"kept states say {dtype} but hold {value_type}; known: {', '.join(HIDDEN_TYPES)}")
    column = shard["hidden"].combine_chunks()
    flat = column.values.values.to_numpy(zero_copy_only=False)
    bounds = column.offsets.to_numpy()
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return [
        _as_float32(flat[start * width : stop * width], dtype).reshape(-1, width) if ok else None
        for start, stop, ok in zip(bounds[:-1], bounds[1:], valid, strict=True)
    ]


def _as_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _array(values: list | None, dtype: type) -> np.ndarray | None:
    return None if values is None else np.asarray(values, dtype=dtype)
