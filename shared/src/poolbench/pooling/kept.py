"""Pooling of kept hidden states: the same vectors as on the device, later and without the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch

from poolbench.contracts.tables import require_columns, states_schema
from poolbench.errors import CellError, InputError
from poolbench.pooling.batch import Plan, Request, pool_layer
from poolbench.pooling.collect import VectorCollector
from poolbench.pooling.context import TokenContext, Words
from poolbench.pooling.signals import Signals

#: Signals that kept states carry, as columns of the STATES table; the others need the model.
KEPT_SIGNALS = ("inflow",)


def words_by_passage(annotations: pa.Table | None) -> dict[str, Words]:
    """The annotation rows of a table by passage id; empty without a table."""
    if annotations is None:
        return {}
    return {row["passage_id"]: Words.from_row(row) for row in annotations.to_pylist()}


def pool_kept(
    states: pa.Table, requests: Sequence[Request], annotations: pa.Table | None = None
) -> dict[str, pa.Table]:
    """Pools a STATES table with every request.

    Args:
        states: Kept states of one layer.
        requests: What to pool with.
        annotations: ANNOTATIONS of the same passages, for linguistic strategies.

    Returns:
        A VECTORS table by strategy id.

    Raises:
        InputError: If the table lacks columns.
    """
    require_columns(states, states_schema(1), "the kept states")
    width = _width(states)
    words = words_by_passage(annotations)
    collector = VectorCollector(states["passage_id"].to_pylist(), [request.id for request in requests], width)
    for index, passage in enumerate(_rows(states)):
        if passage["status"] != "ok":
            collector.fail(index, CellError(passage["status"], passage["reason"]))
            continue
        plan = Plan.of([_context(passage, words)], requests)
        vectors, outcomes = pool_layer([torch.from_numpy(passage["hidden"])], plan, [_signals(passage)])
        collector.add(index, vectors[0], outcomes[0])
    return {request.id: collector.table(request.id) for request in requests}


def _context(passage: Mapping, words: Mapping[str, Words]) -> TokenContext:
    return TokenContext(
        passage_id=passage["passage_id"],
        offsets=np.stack([passage["token_start"], passage["token_end"]], axis=1).astype(np.int64),
        special=np.asarray(passage["special"], dtype=bool),
        token_ids=np.asarray(passage["token_ids"]),
        words=words.get(passage["passage_id"]),
    )


def _signals(passage: Mapping) -> Signals:
    return {name: np.asarray(passage[name]) for name in KEPT_SIGNALS if passage[name] is not None}


def _rows(states: pa.Table) -> Iterator[dict]:
    """Rows as dictionaries, with ``hidden`` as a float32 array [T, D] and no trip through Python floats."""
    small = states.drop_columns(["hidden"])
    for batch_small, batch in zip(small.to_batches(), states.to_batches(), strict=True):
        hidden = batch.column("hidden")
        width = hidden.type.value_type.list_size
        for row, fields in enumerate(batch_small.to_pylist()):
            cell = hidden[row].values if hidden[row].is_valid else None
            matrix = None if cell is None else np.array(cell.flatten(), dtype=np.float32).reshape(-1, width)
            yield {**fields, "hidden": matrix}


def _width(states: pa.Table) -> int:
    kind = states.schema.field("hidden").type
    if not (pa.types.is_list(kind) and pa.types.is_fixed_size_list(kind.value_type)):
        raise InputError(f"kept states: column hidden is {kind}; it must be list<fixed_size_list<float>>")
    return kind.value_type.list_size
