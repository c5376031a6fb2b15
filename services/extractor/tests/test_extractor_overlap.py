"""On a GPU the next batch is captured before the previous one is pooled, and a lack of memory costs no passage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from poolbench.pooling.batch import Request
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract_encoded
from poolbench_extractor.forward.overlap import Overlap

FOUR = [["a", "b"], ["c"], ["d", "e"], ["f"]]


class Log:
    """Notes what is called, in order; ``small`` is the most passages that consumption has memory for."""

    def __init__(self, small: int = 9) -> None:
        self.calls: list[str] = []
        self.small = small

    def forward(self, batch: Sequence[Any]) -> Any:
        self.calls.append("forward " + "".join(batch))
        return list(batch)

    def consume(self, batch: Sequence[Any], captured: Any) -> None:
        assert list(batch) == captured
        if len(batch) > self.small:
            raise torch.OutOfMemoryError("out of memory")
        self.calls.append("consume " + "".join(batch))


def calls_of(log: Log) -> list[str]:
    overlap = Overlap(log.forward, log.consume, None)
    for batch in FOUR:
        overlap.run(batch)
    overlap.flush()
    overlap.flush()
    return log.calls


def test_the_next_forward_pass_starts_before_a_batch_is_consumed() -> None:
    assert calls_of(Log()) == [
        "forward ab", "forward c", "consume ab", "forward de", "consume c", "forward f", "consume de", "consume f",
    ]  # fmt: skip


def test_a_consumption_without_memory_is_done_in_halves_from_forward_passes_of_their_own() -> None:
    calls = calls_of(Log(small=1))
    assert [call for call in calls if call.startswith("consume")] == [f"consume {name}" for name in "abcdef"]
    # The whole batch is tried once more, now that no other batch holds memory.
    assert calls[2:7] == ["forward ab", "forward a", "consume a", "forward b", "consume b"]


def test_another_error_of_the_consumption_is_raised() -> None:
    def consume(_batch: Any, _captured: Any) -> None:
        raise RuntimeError("shapes differ")

    overlap = Overlap(lambda batch: batch, consume, None)  # type: ignore[arg-type, return-value]
    overlap.run(["a"])  # type: ignore[list-item]
    with pytest.raises(RuntimeError, match="shapes"):
        overlap.flush()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_overlapped_vectors_equal_those_of_single_batches() -> None:
    from extraction.inputs import TINY, random_decoder, random_passages

    decoder, passages = random_decoder(TINY, "cuda"), random_passages(24, 60, TINY.vocabulary)
    wanted = {1: [Request.of("A1_mean"), Request.of("A4_norm_weighted"), Request.of("A2_max")]}
    one, many = (
        extract_encoded(decoder, passages, wanted, limits=BatchLimits(max_tokens=tokens)) for tokens in (60, 240)
    )
    for role, table in one.items():
        pairs = zip(table["vector"].to_pylist(), many[role]["vector"].to_pylist(), strict=True)
        assert all(np.allclose(a, b, atol=1e-4) for a, b in pairs)
