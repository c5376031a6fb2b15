"""Write per-token hidden states as shards while batches complete (`--keep-activations`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from poolbench.pooling.signals import KEPT_SIGNALS, Signals
from poolbench.pooling.states import SHARD_BYTES, KeptPassage, ShardWriter
from poolbench_extractor.encode import Encoded

#: Takes the shards of one layer.
Sink = Callable[[pa.Table], None]


class StateKeeper:
    """Writes the states of one layer, in the model's dtype, to a sink; at most one shard is held in memory."""

    def __init__(self, encoded: Sequence[Encoded], width: int, sink: Sink, shard_bytes: int = SHARD_BYTES) -> None:
        self._writer = ShardWriter(sink, width, shard_bytes)
        self._failed = [passage for passage in encoded if passage.error is not None]
        self._done: set[int] = set()

    def add(self, batch: Sequence[Encoded], states: Sequence[Tensor], signals: Sequence[Signals]) -> None:
        """Add the states [T, D] and the signals of a batch; passages that were added before are skipped."""
        for passage, h_TD, passage_signals in zip(batch, states, signals, strict=True):
            if passage.index in self._done:
                continue  # memory ran out later in the batch, and its halves are run again
            captured = {
                name: passage_signals[name]
                for name in KEPT_SIGNALS
                if isinstance(passage_signals.get(name), np.ndarray)
            }
            self._writer.add(_kept(passage, _stored(h_TD), captured))
            self._done.add(passage.index)

    def close(self) -> None:
        """Write the rest, and the passages that could not be run."""
        for passage in self._failed:
            self._writer.add(_kept(passage, None, {}))
        self._writer.close()


def _kept(passage: Encoded, hidden_TD: np.ndarray | None, signals: Signals) -> KeptPassage:
    context = passage.context
    return KeptPassage(
        position=passage.index,
        passage_id=context.passage_id,
        hidden_TD=hidden_TD,
        special=context.special,
        token_ids=context.token_ids,
        offsets=context.offsets,
        signals={name: value for name, value in signals.items() if isinstance(value, np.ndarray)},
        error=passage.error,
    )


def _stored(h_TD: Tensor) -> np.ndarray:
    """Return a copy on the host in the states' own dtype, bfloat16 as its bits; a view would keep the batch alive."""
    if h_TD.dtype is torch.bfloat16:
        return np.array(h_TD.contiguous().view(torch.int16).cpu().numpy().view(np.uint16))
    return np.array(h_TD.cpu().numpy())
