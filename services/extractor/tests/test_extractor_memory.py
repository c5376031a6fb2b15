"""A device that is too small: batches are halved by a real refusal inside the model, and nothing changes but time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from poolbench.pooling.batch import Request
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Encoded, PassageTexts, encode
from poolbench_extractor.forward.batching import DeviceMemoryError, make_batches
from poolbench_extractor.models.decoder import Decoder

WANTED = {1: [Request.of("A1_mean"), Request.of("S1_attention"), Request.of("A2_max")]}


@contextmanager
def memory_for(decoder: Decoder, num_tokens: int, error: Callable[[], BaseException]) -> Iterator[list[int]]:
    """Within it, the second block runs out of memory above so many positions; yields the sizes that fitted."""
    fitted: list[int] = []

    def refuse(_block: Any, args: tuple[torch.Tensor, ...]) -> None:
        size = args[0].shape[0] * args[0].shape[1]
        if size > num_tokens:
            raise error()
        fitted.append(size)

    handle = decoder.blocks[1].register_forward_pre_hook(refuse)
    try:
        yield fitted
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def passages(llama: Decoder, texts: list[str]) -> list[Encoded]:
    many = [f"{text} {index}" for index in range(4) for text in texts]
    return encode(llama, PassageTexts([f"p{index}" for index in range(len(many))], many))


@pytest.mark.parametrize(
    "error",
    [
        lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError,
    ],
)
def test_halved_batches_give_the_same_vectors(
    error: Callable[[], BaseException], llama: Decoder, passages: list[Encoded]
) -> None:
    expected = extract(llama, passages, WANTED)
    progress: list[tuple[int, int]] = []
    with memory_for(llama, 150, error) as fitted:
        found = extract(llama, passages, WANTED, progress=lambda *done: progress.append(done))
    assert max(fitted) <= 150 and len(fitted) > 3
    assert progress[-1] == (20, 20) and progress == sorted(progress)
    for role, table in expected.items():
        assert table.drop_columns("vector") == found[role].drop_columns("vector")
        for mine, theirs in zip(found[role]["vector"].to_pylist(), table["vector"].to_pylist(), strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=1e-5, atol=1e-6)


def test_a_passage_that_alone_is_too_large_is_an_error(llama: Decoder, passages: list[Encoded]) -> None:
    """Not a failed row: on a larger device the same artifact would hold a vector."""
    with memory_for(llama, 20, MemoryError), pytest.raises(DeviceMemoryError, match="tokens does not fit"):
        extract(llama, passages, WANTED)


def test_other_errors_are_not_taken_for_a_lack_of_memory(llama: Decoder, passages: list[Encoded]) -> None:
    with memory_for(llama, 20, lambda: RuntimeError("shapes differ")), pytest.raises(RuntimeError, match="shapes"):
        extract(llama, passages, WANTED)


def test_the_hooks_are_gone_after_a_failed_pass(llama: Decoder, passages: list[Encoded]) -> None:
    # Transformers leaves hooks of its own once it was asked for hidden states.
    before = [list(block._forward_hooks) for block in llama.blocks]
    with memory_for(llama, 20, MemoryError), pytest.raises(DeviceMemoryError):
        extract(llama, passages, WANTED)
    assert [list(block._forward_hooks) for block in llama.blocks] == before and not llama.lock.locked()


def test_passages_beyond_the_rotary_switch_have_batches_of_their_own(passages: list[Encoded]) -> None:
    parted = [Encoded(p.index, p.context, stretched=p.num_positions > 30) for p in passages]
    batches = list(make_batches(parted, BatchLimits()))
    assert sorted(p.index for batch in batches for p in batch) == list(range(len(passages)))
    assert len(batches) == 2 and all(len({p.stretched for p in batch}) == 1 for batch in batches)
