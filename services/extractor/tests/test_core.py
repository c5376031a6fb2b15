"""Extraction end to end on small models: invariance, failures, kept states, calibration, small devices."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from services.extractor.tests.conftest import TEXTS, annotations_of

from poolbench.contracts.tables import vector_matrix
from poolbench.errors import InputError
from poolbench.pooling import STRATEGIES
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import words_by_passage
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import calibrate, extract
from poolbench_extractor.encode import Encoded, Frequencies, PassageTexts, Reading, encode
from poolbench_extractor.forward.batching import DeviceMemoryError, make_batches, run_halving
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.decoder import Decoder

SPECS = [spec for spec in STRATEGIES.all() if not spec.reads_states]
REQUESTS = [Request.of(spec.id, spec.params_for(("the",))) for spec in SPECS]


def passages_of(texts: list[str]) -> PassageTexts:
    words = words_by_passage(annotations_of(texts))
    return PassageTexts(list(words), texts, words, Frequencies(np.linspace(0, 2 / 400, 400)))


def vectors(decoder: Decoder, passages: PassageTexts, reading: Reading) -> dict[str, dict[str, np.ndarray]]:
    tables = extract(decoder, passages, {0: REQUESTS, 2: REQUESTS}, reading=reading)
    return {
        role: dict(zip(table["passage_id"].to_pylist(), vector_matrix(table["vector"]), strict=True))
        for role, table in tables.items()
    }


def test_batches_padding_neighbours_and_order_change_nothing(llama: Decoder) -> None:
    passages = passages_of(TEXTS)
    expected = vectors(llama, passages, Reading())
    backwards = replace(passages, ids=passages.ids[::-1], texts=passages.texts[::-1])
    variants = [
        (passages, BatchLimits(max_passages=1)),
        (passages, BatchLimits(max_tokens=70)),
        (passages, BatchLimits(padding_side="left")),
        (backwards, BatchLimits(max_passages=2)),
    ]
    for variant, limits in variants:
        found = vectors(llama, variant, Reading(limits=limits))
        for role, rows in expected.items():
            for passage_id, vector in rows.items():
                gap = np.linalg.norm(found[role][passage_id] - vector)
                assert gap <= 1e-5 * np.linalg.norm(vector), (role, passage_id, limits)


def test_include_bos_moves_the_mean_and_leaves_the_last_token(llama: Decoder) -> None:
    wanted = {1: [Request.of("A1_mean"), Request.of("P1_last_token")]}
    without, with_bos = (
        extract(llama, passages_of(TEXTS), wanted, reading=Reading(include_bos=flag)) for flag in (False, True)
    )
    column = {role: [vector_matrix(t[role]["vector"]) for t in (without, with_bos)] for role in without}
    np.testing.assert_allclose(*column["P1_last_token/1"], rtol=1e-6)
    assert np.abs(np.subtract(*column["A1_mean/1"])).max() > 1e-3


def test_too_long_and_empty_passages_fail_alone(llama: Decoder) -> None:
    tables = extract(llama, passages_of([TEXTS[0], "word " * 200, "", TEXTS[1]]), {0: REQUESTS})
    for request in REQUESTS:
        rows = tables[f"{request.id}/0"].to_pylist()
        assert [row["status"] for row in rows] == ["ok", "failed", "failed", "ok"], request.id
        assert "window is 128" in rows[1]["reason"] and "no real token" in rows[2]["reason"]
        assert rows[1]["vector"] is None and rows[0]["vector"] is not None
    tables = extract(llama, passages_of(TEXTS), {0: [Request.of("A1_mean")]}, reading=Reading(max_length=10))
    assert tables["A1_mean/0"]["status"].to_pylist() == ["failed", "ok", "failed", "failed", "failed"]


def test_calibration_is_the_median_norm_of_real_tokens(llama: Decoder) -> None:
    table = calibrate(llama, passages_of([*TEXTS, ""]), [0, 2])
    passages = encode(llama, PassageTexts([str(i) for i in range(len(TEXTS))], TEXTS))
    captured = capture(llama, passages, [0, 2])
    for row in table.to_pylist():
        norms = torch.cat([h[1:].norm(dim=-1) for h in captured.states_of(row["layer"])])
        assert row["num_tokens"] == len(norms)
        assert row["median_residual_norm"] == pytest.approx(float(np.median(norms.numpy())), rel=1e-5)
    small = calibrate(llama, passages_of(TEXTS), [0], reading=Reading(limits=BatchLimits(max_passages=1)))
    assert small["median_residual_norm"][0].as_py() == pytest.approx(table["median_residual_norm"][0].as_py(), rel=1e-6)
    with pytest.raises(InputError, match="none of 1"):
        calibrate(llama, passages_of([""]), [0])


def test_control_tokens_written_in_a_passage_are_text(llama: Decoder) -> None:
    (passage,) = encode(llama, PassageTexts(["p"], ["a <s> b</s>"]))
    assert passage.token_ids[0] == llama.tokenizer.bos_token_id
    assert not set(passage.token_ids[1:]) & set(llama.tokenizer.all_special_ids)
    assert passage.context.special.tolist() == [True] + [False] * (passage.num_positions - 1)


def test_two_threads_share_one_model(llama: Decoder) -> None:
    wanted = [{0: [Request.of("A1_mean")]}, {2: [Request.of("A1_mean")]}] * 4
    expected = [extract(llama, passages_of(TEXTS), item) for item in wanted[:2]] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda item: extract(llama, passages_of(TEXTS), item), wanted))
    assert found == expected


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
def passages(llama: Decoder) -> list[Encoded]:
    many = [f"{text} {index}" for index in range(4) for text in TEXTS]
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


def test_a_passage_that_alone_is_too_large_is_an_error_and_leaves_no_hook(
    llama: Decoder, passages: list[Encoded]
) -> None:
    """Not a failed row: on a larger device the same artifact would hold a vector."""
    with memory_for(llama, 20, MemoryError), pytest.raises(DeviceMemoryError, match="tokens does not fit"):
        extract(llama, passages, WANTED)
    with pytest.raises(DeviceMemoryError, match="does not fit"):
        run_halving(passages, lambda _batch: torch.empty(10**15))  # PyTorch's own error
    with memory_for(llama, 20, lambda: RuntimeError("shapes differ")), pytest.raises(RuntimeError, match="shapes"):
        extract(llama, passages, WANTED)
    # Transformers leaves hooks of its own once it was asked for hidden states.
    before = [list(block._forward_hooks) for block in llama.blocks]
    with memory_for(llama, 20, MemoryError), pytest.raises(DeviceMemoryError):
        extract(llama, passages, WANTED)
    assert [list(block._forward_hooks) for block in llama.blocks] == before and not llama.lock.locked()


def test_batches_keep_the_token_budget_and_part_at_the_rotary_switch(passages: list[Encoded], llama: Decoder) -> None:
    parted = [Encoded(p.index, p.context, stretched=p.num_positions > 30) for p in passages]
    batches = list(make_batches(parted, BatchLimits()))
    assert sorted(p.index for batch in batches for p in batch) == list(range(len(passages)))
    assert len(batches) == 2 and all(len({p.stretched for p in batch}) == 1 for batch in batches)
    passages = encode(llama, PassageTexts([str(i) for i in range(20)], TEXTS * 4))
    batches = list(make_batches(passages, BatchLimits(max_tokens=80, max_passages=6)))
    assert sorted(p.index for batch in batches for p in batch) == list(range(20))
    for batch in batches:
        assert len(batch) <= 6 and max(p.num_positions for p in batch) * len(batch) <= 80
    longest = [batch[0].num_positions for batch in batches]
    assert longest == sorted(longest, reverse=True)
