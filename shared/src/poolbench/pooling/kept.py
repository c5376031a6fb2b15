"""Pool kept hidden states: the same vectors as on the device, later and without the model."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch

from poolbench.cancellation import check_cancelled
from poolbench.errors import InputError
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.collect import VectorCollector
from poolbench.pooling.context import TokenContext, Words
from poolbench.pooling.signals import SIGNALS, Signals
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.pooling.states import KeptPassage, read_states, width_of


def words_by_passage(annotations: pa.Table | None) -> dict[str, Words]:
    """Return the annotation rows of a table by passage id. Without a table, the result is empty."""
    if annotations is None:
        return {}
    return {row["passage_id"]: Words.from_row(row) for row in annotations.to_pylist()}


def pool_kept(
    shards: Iterable[pa.Table],
    requests: Sequence[Request],
    annotations: pa.Table | None = None,
    sinks: SinkRule = LEAVE_OUT,
) -> dict[str, pa.Table]:
    """Pool kept states with every request, one shard in memory at a time.

    Args:
        shards: STATES tables of one layer, in any order.
        requests: Strategies and parameters.
        annotations: ANNOTATIONS of the same passages, for linguistic strategies.
        sinks: Which tokens are attention sinks, and whether they are left out. Kept inflow must have been computed by
            the same rule.

    Returns:
        A VECTORS table by strategy id, in the order of the passages.

    Raises:
        InputError: A shard is not a table of states, or a passage occurs twice.
    """
    words = words_by_passage(annotations)
    positions: list[int] = []
    parts: dict[str, list[pa.Table]] = {request.id: [] for request in requests}
    for shard in shards:
        passages = read_states(shard)
        collector = _pool_shard(passages, width_of(shard), requests, words, sinks)
        positions += [passage.position for passage in passages]
        for strategy_id, tables in parts.items():
            tables.append(collector.table(strategy_id))
    if len(set(positions)) < len(positions):
        raise InputError(f"the kept states hold {len(positions) - len(set(positions))} passages twice; keep them again")
    order = pa.array(np.argsort(positions, kind="stable"))
    return {strategy_id: pa.concat_tables(tables).take(order) for strategy_id, tables in parts.items()}


def _pool_shard(
    passages: Sequence[KeptPassage],
    width: int,
    requests: Sequence[Request],
    words: Mapping[str, Words],
    sinks: SinkRule,
) -> VectorCollector:
    collector = VectorCollector([p.passage_id for p in passages], [request.id for request in requests], width, sinks)
    for index, passage in enumerate(passages):
        check_cancelled()
        if passage.error is not None:
            collector.fail(index, passage.error)
        elif passage.hidden_TD is not None:
            weighing = Weighing.of([_context(passage, words)], requests)
            states = [torch.from_numpy(passage.hidden_TD)]
            (pooled,) = zip(*pool_layer(states, weighing, [_signals(passage)], sinks), strict=True)
            collector.add(index, *pooled)
    return collector


def _context(passage: KeptPassage, words: Mapping[str, Words]) -> TokenContext:
    if passage.special is None:
        raise InputError(f"the kept states of passage {passage.passage_id!r} do not say which tokens are special")
    return TokenContext(
        passage_id=passage.passage_id,
        offsets=passage.offsets,
        special=passage.special,
        token_ids=passage.token_ids,
        words=words.get(passage.passage_id),
    )


def _signals(passage: KeptPassage) -> Signals:
    """Return the captured signals in their shapes: [H, T] if a signal is per head."""
    signals = {name: values for name, values in passage.signals.items() if name in SIGNALS}
    num = len(passage.hidden_TD) if passage.hidden_TD is not None else 0
    return {name: v.reshape(-1, num) if SIGNALS[name].per_head else v for name, v in signals.items()}
