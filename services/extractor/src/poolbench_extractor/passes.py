"""Passages become tokens and batches; each batch is captured in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from poolbench.cancellation import check_cancelled
from poolbench.pooling.context import Words
from poolbench.pooling.signals import from_source
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.encode import Encoded, Frequencies, encode
from poolbench_extractor.forward.batching import make_batches, run_halving
from poolbench_extractor.forward.capture import Captured, capture
from poolbench_extractor.models.decoder import Decoder

Progress = Callable[[int, int], None]
DEFAULT_LIMITS = BatchLimits()


@dataclass(frozen=True)
class PassageTexts:
    """Texts with their ids and annotations, and token frequencies where a strategy needs them."""

    ids: Sequence[str]
    texts: Sequence[str]
    words: Mapping[str, Words] = field(default_factory=dict)
    frequencies: Frequencies | None = None


@dataclass(frozen=True)
class Reading:
    """How passages become tokens and batches."""

    include_bos: bool = False
    max_length: int | None = None
    limits: BatchLimits = DEFAULT_LIMITS


DEFAULT_READING = Reading()


def encode_passages(decoder: Decoder, passages: PassageTexts, reading: Reading) -> list[Encoded]:
    """Return the passages as tokens; a passage that cannot be run has an error."""
    return encode(
        decoder,
        passages.ids,
        passages.texts,
        passages.words,
        include_bos=reading.include_bos,
        max_length=reading.max_length,
        frequencies=passages.frequencies,
    )


def run_batches(
    decoder: Decoder,
    encoded: Sequence[Encoded],
    consume: Callable[[Sequence[Encoded], Captured], None],
    *,
    layers: Sequence[int],
    signals: Mapping[int, Collection[str]] | None = None,
    limits: BatchLimits,
    progress: Progress | None,
) -> None:
    """Run forward passes over all usable passages; each batch's captures are consumed before the next."""
    done = 0
    if any(from_source("loss", names) for names in (signals or {}).values()):
        limits = limits.model_copy(update={"max_tokens": min(limits.max_tokens, limits.max_loss_tokens)})

    def attempt(batch: Sequence[Encoded]) -> None:
        consume(batch, capture(decoder, batch, layers, signals=signals, padding_side=limits.padding_side))

    for batch in make_batches((p for p in encoded if p.error is None), limits):
        check_cancelled()
        run_halving(batch, attempt)
        done += len(batch)
        if progress is not None:
            progress(done, len(encoded))
