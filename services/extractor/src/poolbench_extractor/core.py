"""Passages in, pooled vectors (and kept states) out: the functions behind tasks and requests alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.collect import VectorCollector
from poolbench.pooling.signals import KEPT_SIGNALS
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.encode import Encoded
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.passes import (
    DEFAULT_LIMITS,
    DEFAULT_READING,
    Passages,
    Progress,
    Reading,
    encode_passages,
    run_batches,
)
from poolbench_extractor.states import Sink, StateKeeper


def extract(
    decoder: Decoder,
    passages: Passages,
    wanted: Mapping[int, Sequence[Request]],
    *,
    keep: Mapping[int, Sink] | None = None,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> dict[str, pa.Table]:
    """Pools every passage with the wanted strategies of each layer in one pass over the model.

    Args:
        decoder: The model.
        passages: What to read.
        wanted: Requests by layer.
        keep: Takes the per-token states of each layer to be kept, shard by shard.
        reading: Special tokens, window and batch sizes.
        progress: Called with passages done and their number.

    Returns:
        VECTORS by ``<strategy>/<layer>``.
    """
    encoded = encode_passages(decoder, passages, reading)
    return extract_encoded(decoder, encoded, wanted, keep=keep, limits=reading.limits, progress=progress)


def extract_encoded(
    decoder: Decoder,
    encoded: Sequence[Encoded],
    wanted: Mapping[int, Sequence[Request]],
    *,
    keep: Mapping[int, Sink] | None = None,
    limits: BatchLimits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> dict[str, pa.Table]:
    """As ``extract``, from passages that are tokens already."""
    work = _Extraction(decoder, encoded, wanted, keep or {})
    run_batches(
        decoder,
        encoded,
        work.consume,
        layers=work.layers,
        signals=work.signals,
        limits=limits,
        progress=progress,
    )
    return work.finish()


class _Extraction:
    """The outputs of one extraction while batches come in."""

    def __init__(
        self,
        decoder: Decoder,
        encoded: Sequence[Encoded],
        wanted: Mapping[int, Sequence[Request]],
        keep: Mapping[int, Sink],
    ) -> None:
        ids = [passage.context.passage_id for passage in encoded]
        self._encoded = encoded
        self._wanted = {layer: tuple(requests) for layer, requests in wanted.items() if requests}
        self._pooled = {
            layer: VectorCollector(ids, [request.id for request in requests], decoder.width)
            for layer, requests in self._wanted.items()
        }
        self._kept = {layer: StateKeeper(encoded, decoder.width, sink) for layer, sink in keep.items()}

    @property
    def layers(self) -> list[int]:
        """The layers to capture."""
        return sorted({*self._wanted, *self._kept})

    @property
    def signals(self) -> dict[int, set[str]]:
        """What the strategies of each layer need; kept states carry some for strategies to come."""
        needs: dict[int, set[str]] = {layer: set(KEPT_SIGNALS) for layer in self._kept}
        for layer, requests in self._wanted.items():
            needs.setdefault(layer, set()).update(*(request.strategy.needs for request in requests))
        return needs

    def consume(self, batch: Sequence[Encoded], captured: Captured) -> None:
        """Pools and keeps one batch. What does not depend on the layer is weighed once for all of them."""
        contexts = [passage.context for passage in batch]
        plans = {requests: Weighing.of(contexts, requests) for requests in set(self._wanted.values())}
        for layer in self.layers:
            states, signals = captured.states_of(layer), captured.signals_of(layer)
            if layer in self._pooled:
                pooled = pool_layer(states, plans[self._wanted[layer]], signals)
                for passage, vectors_SD, outcomes in zip(batch, *pooled, strict=True):
                    self._pooled[layer].add(passage.index, vectors_SD, outcomes)
            if layer in self._kept:
                self._kept[layer].add(batch, states, signals)

    def finish(self) -> dict[str, pa.Table]:
        """Ends the kept states; all tables by role, with the passages that could not be run as failed rows."""
        tables: dict[str, pa.Table] = {}
        for layer, collector in self._pooled.items():
            for passage in self._encoded:
                if passage.error is not None:
                    collector.fail(passage.index, passage.error)
            tables |= {f"{request.id}/{layer}": collector.table(request.id) for request in self._wanted[layer]}
        for kept in self._kept.values():
            kept.close()
        return tables
