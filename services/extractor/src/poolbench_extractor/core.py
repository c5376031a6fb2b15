"""Passages in, pooled vectors (and kept states) out: the functions behind tasks and requests."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from poolbench.cancellation import check_cancelled
from poolbench.contracts.tables import CALIBRATION, table_from_rows
from poolbench.errors import InputError
from poolbench.pooling.batch import PooledBatch, Request, Weighing, pooling_steps
from poolbench.pooling.collect import VectorCollector
from poolbench.pooling.signals import KEPT_SIGNALS, Signals, from_source
from poolbench.pooling.sinks import SinkRule
from poolbench.pooling.states import SHARD_BYTES, KeptPassage, ShardWriter
from poolbench.pooling.transfers import HostCopy
from poolbench.telemetry.catalog import BATCH_SIZE, TOKENS
from poolbench_extractor.encode import DEFAULT_READING, Encoded, PassageTexts, Reading, encode
from poolbench_extractor.forward.batching import BatchesAhead, make_batches, together
from poolbench_extractor.forward.capture import Captured, capture
from poolbench_extractor.models.decoder import Decoder

#: Takes the shards of one layer.
Sink = Callable[[pa.Table], None]
Progress = Callable[[int, int], None]


class StateKeeper:
    """Writer of the states of one layer to a sink.

    The states have the dtype of the model. At most one shard is in memory.
    """

    def __init__(self, encoded: Sequence[Encoded], width: int, sink: Sink, shard_bytes: int = SHARD_BYTES) -> None:
        self._writer = ShardWriter(sink, width, shard_bytes)
        self._failed = [passage for passage in encoded if passage.error is not None]
        self._done: set[int] = set()

    def add(self, batch: Sequence[Encoded], states: Sequence[Tensor], signals: Sequence[Signals]) -> None:
        """Add the states [T, D] and the signals of a batch. Passages that were added before are skipped."""
        for passage, h_TD, passage_signals in zip(batch, states, signals, strict=True):
            if passage.index in self._done:
                continue  # memory ran out later in the batch, and its halves are run again
            captured = {name: passage_signals[name] for name in KEPT_SIGNALS if name in passage_signals}
            self._writer.add(_kept(passage, _stored(h_TD), captured))
            self._done.add(passage.index)

    def close(self) -> None:
        """Write the last shard, with a failed row for each passage that could not be run."""
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
    """Return states on the host as an array of their own dtype, or of uint16 bits if they are bfloat16.

    The result is a copy, because a view would keep the whole batch in memory.
    """
    if h_TD.dtype is torch.bfloat16:
        return np.array(h_TD.contiguous().view(torch.int16).numpy().view(np.uint16))
    return np.array(h_TD.numpy())


def run_batches(
    decoder: Decoder,
    encoded: Sequence[Encoded],
    consume: Callable[[Sequence[Encoded], Captured], Iterator[None] | None],
    *,
    layers: Sequence[int],
    signals: Mapping[int, Collection[str]] | None = None,
    reading: Reading,
    progress: Progress | None,
) -> None:
    """Run forward passes over all passages without an error.

    After each batch, `consume` receives the passages and their captured states before the next batch starts. If it
    returns an iterator, the next batch starts before that is exhausted (`BatchesAhead`).
    """
    done, limits, sinks = 0, reading.limits, reading.sinks
    if any(from_source("loss", names) for names in (signals or {}).values()):
        limits = limits.model_copy(update={"max_tokens": min(limits.max_tokens, limits.max_loss_tokens)})

    def steps(batch: Sequence[Encoded]) -> Iterator[None]:
        nonlocal done
        settings: dict[str, Any] = {"padding_side": limits.padding_side, "erased": reading.erased}
        yield from consume(batch, capture(decoder, batch, layers, signals=signals, sinks=sinks, **settings)) or ()
        BATCH_SIZE.observe(len(batch), service="extractor")
        TOKENS.add(sum(passage.num_positions for passage in batch), service="extractor", tokens="read")
        done += len(batch)
        if progress is not None:
            progress(done, len(encoded))

    ahead = BatchesAhead(steps)
    for batch in make_batches((p for p in encoded if p.error is None), limits):
        check_cancelled()
        ahead.begin(batch)
    ahead.finish()


def extract(
    decoder: Decoder,
    passages: PassageTexts | Sequence[Encoded],
    wanted: Mapping[int, Sequence[Request]],
    *,
    keep: Mapping[int, Sink] | None = None,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> dict[str, pa.Table]:
    """Pool every passage with the wanted strategies of each layer in one pass over the model.

    Args:
        passages: Texts, or passages that are already tokenised.
        wanted: Pooling requests of each layer.
        keep: For each layer, the sink to which per-token states are written shard by shard.
        progress: Function that is called with the number of finished passages and of all passages.

    Returns:
        VECTORS tables by `<strategy>/<layer>`.
    """
    encoded = encode(decoder, passages, reading) if isinstance(passages, PassageTexts) else passages
    work = _Extraction(decoder, encoded, wanted, keep or {}, reading.sinks)
    run_batches(
        decoder, work.texts, work.consume, layers=work.layers, signals=work.signals, reading=reading, progress=progress
    )
    return work.finish()


def shared_forwards(encoded: Sequence[Encoded]) -> dict[int, list[Encoded]]:
    """Group all passages without an error by their tokens.

    Passages with equal tokens, such as several spans of one text, share one forward pass. The key of a group is the
    index of its first passage.
    """
    sharing: dict[bytes, list[Encoded]] = {}
    for passage in encoded:
        if passage.error is None:
            sharing.setdefault(passage.token_ids.tobytes(), []).append(passage)
    return {passages[0].index: passages for passages in sharing.values()}


class _Extraction:
    """The outputs of one extraction while batches complete."""

    def __init__(
        self,
        decoder: Decoder,
        encoded: Sequence[Encoded],
        requests_by_layer: Mapping[int, Sequence[Request]],
        keep: Mapping[int, Sink],
        sinks: SinkRule,
    ) -> None:
        ids = [passage.context.passage_id for passage in encoded]
        self._encoded, self._sinks = encoded, sinks
        self._requests = {layer: tuple(requests) for layer, requests in requests_by_layer.items() if requests}
        self._pooled = {
            layer: VectorCollector(ids, [request.id for request in requests], decoder.width, sinks)
            for layer, requests in self._requests.items()
        }
        self._kept = {layer: StateKeeper(encoded, decoder.width, sink) for layer, sink in keep.items()}
        self._sharing = shared_forwards(encoded)

    @property
    def texts(self) -> list[Encoded]:
        """Return the first passage of each group with equal tokens."""
        return [passages[0] for passages in self._sharing.values()]

    @property
    def layers(self) -> list[int]:
        """Return the layers to capture."""
        return sorted({*self._requests, *self._kept})

    @property
    def signals(self) -> dict[int, set[str]]:
        """Return the names of the signals to compute at each layer.

        These are the signals that the strategies need. Layers whose states are stored also get the signals of
        `KEPT_SIGNALS`, for later strategies.
        """
        needs: dict[int, set[str]] = {layer: set(KEPT_SIGNALS) for layer in self._kept}
        for layer, requests in self._requests.items():
            needs.setdefault(layer, set()).update(*(request.strategy.needs for request in requests))
        return needs

    def consume(self, batch: Sequence[Encoded], captured: Captured) -> Iterator[None]:
        """Pool one batch and store its states, in steps as those of `pooling_steps`."""
        parts = self._parts(batch, captured)
        del captured  # each part holds what it needs, for as long as it does
        yield from together(parts)

    def _parts(self, batch: Sequence[Encoded], captured: Captured) -> list[Iterator[None]]:
        """Return what to do with a batch at each layer.

        Weights that do not depend on the layer are computed once for all layers.
        """
        read = [(row, passage) for row, text in enumerate(batch) for passage in self._sharing[text.index]]
        rows, passages = [row for row, _ in read], [passage for _, passage in read]
        contexts = [passage.context for passage in passages]
        plans = {requests: Weighing.of(contexts, requests) for requests in set(self._requests.values())}
        parts: list[Iterator[None]] = []
        for layer in self.layers:
            of_texts, signals = captured.states_of(layer), partial(_signals, captured, layer, rows)
            states = [of_texts[row] for row in rows]
            if layer in self._pooled:
                steps = pooling_steps(states, plans[self._requests[layer]], signals, self._sinks)
                parts.append(self._pooling(layer, passages, steps))
            if layer in self._kept:
                parts.append(self._keeping(layer, passages, [HostCopy(h_TD) for h_TD in states], signals))
        return parts

    def _pooling(
        self, layer: int, passages: Sequence[Encoded], steps: Generator[None, None, PooledBatch]
    ) -> Iterator[None]:
        pooled = yield from steps
        for passage, *columns in zip(passages, *pooled, strict=True):
            self._pooled[layer].add(passage.index, *columns)

    def _keeping(
        self, layer: int, passages: Sequence[Encoded], states: Sequence[HostCopy], signals: Callable[[], list[Signals]]
    ) -> Iterator[None]:
        yield
        self._kept[layer].add(passages, [h_TD.wait() for h_TD in states], signals())

    def finish(self) -> dict[str, pa.Table]:
        """Close the sinks and return all tables by role. Passages that could not be run are failed rows."""
        tables: dict[str, pa.Table] = {}
        for layer, collector in self._pooled.items():
            for passage in self._encoded:
                if passage.error is not None:
                    collector.fail(passage.index, passage.error)
            tables |= {f"{request.id}/{layer}": collector.table(request.id) for request in self._requests[layer]}
        for keeper in self._kept.values():
            keeper.close()
        return tables


def _signals(captured: Captured, layer: int, rows: Sequence[int]) -> list[Signals]:
    by_text = captured.signals_of(layer)
    return [by_text[row] for row in rows]


def calibrate(
    decoder: Decoder,
    passages: PassageTexts,
    layers: Sequence[int],
    *,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> pa.Table:
    """Return CALIBRATION: for each layer, the median L2 norm of the residual stream over real tokens.

    The median is used because one attention sink in a passage of 40 tokens can multiply the mean.

    Raises:
        InputError: No passage can be run.
    """
    encoded = encode(decoder, passages, reading)
    usable = [passage for passage in encoded if passage.error is None]
    if not usable:
        raise InputError(f"calibration: none of {len(encoded)} passages can be run, e.g. {encoded[0].error}")
    norms: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}

    def run(batch: Sequence[Encoded], captured: Captured) -> Iterator[None]:
        copies = {
            layer: [HostCopy(h_TD.float().norm(dim=-1)) for h_TD in captured.states_of(layer)] for layer in layers
        }
        del captured
        yield
        for layer in layers:
            for passage, norms_T in zip(batch, copies[layer], strict=True):
                norms[layer].append(norms_T.wait().double().numpy()[passage.context.real])

    run_batches(decoder, encoded, run, layers=layers, reading=reading, progress=progress)
    num_tokens = sum(len(passage.context.real) for passage in usable)
    rows = [
        {
            "layer": layer,
            "median_residual_norm": float(np.median(np.concatenate(norms[layer]))),
            "num_tokens": num_tokens,
        }
        for layer in layers
    ]
    return table_from_rows(rows, CALIBRATION)
