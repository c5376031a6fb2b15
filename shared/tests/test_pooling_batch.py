"""Batched pooling: invariances, failures, alignment, kept states, and an import without torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from poolbench.contracts.tables import parts_of, vector_matrix
from poolbench.errors import CellError
from poolbench.pooling import STRATEGIES, TokenContext
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.collect import VectorCollector
from poolbench.pooling.context import first_tokens_of_words, tokens_of_words
from poolbench.pooling.kept import pool_kept
from poolbench.pooling.signals import KEPT_SIGNALS, SIGNALS, Signals
from poolbench.pooling.states import KeptPassage, states_table

POOLED = [s for s in STRATEGIES.all() if not s.reads_states]
UNANNOTATED = [s.id for s in POOLED if not s.reads_annotations]
REQUESTS = [Request.of(strategy_id) for strategy_id in UNANNOTATED]


CAPTURED = [name for name, signal in SIGNALS.items() if signal.source in ("attention", "loss")]


def passage(length: int, seed: int) -> tuple[TokenContext, torch.Tensor, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    special = np.zeros(length, dtype=bool)
    special[0] = True
    signals = {"frequency": rng.random(length)}
    context = TokenContext(f"p{seed}", np.zeros((length, 2), dtype=int), special, signals=signals)
    states = torch.from_numpy(rng.normal(size=(length, 8)).astype(np.float32))
    return context, states, {name: rng.random((3, length) if SIGNALS[name].per_head else length) for name in CAPTURED}


def test_a_passage_alone_equals_itself_in_a_batch() -> None:
    contexts, states, signals = zip(*[passage(n, n) for n in (40, 7, 2, 23)], strict=True)
    together, *_ = pool_layer(states, Weighing.of(contexts, REQUESTS), signals)
    for index in range(4):
        alone, *_ = pool_layer([states[index]], Weighing.of([contexts[index]], REQUESTS), [signals[index]])
        np.testing.assert_allclose(together[index], alone[0], rtol=1e-6, atol=1e-6)


def test_scaling_the_states_scales_the_vectors() -> None:
    context, state, signals = passage(30, 3)
    scaling = [r for r in REQUESTS if r.id != "A8_unit_mean"]
    once, *_ = pool_layer([state], Weighing.of([context], scaling), [signals])
    twice, *_ = pool_layer([2 * state], Weighing.of([context], scaling), [signals])
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5, atol=1e-5)


def test_bfloat16_states_are_pooled_in_float32() -> None:
    context, state, signals = passage(30, 3)
    half, *_ = pool_layer([state.bfloat16()], Weighing.of([context], REQUESTS), [signals])
    exact, *_ = pool_layer([state.bfloat16().float()], Weighing.of([context], REQUESTS), [signals])
    np.testing.assert_array_equal(half, exact)


def test_real_tokens_need_not_be_contiguous() -> None:
    context = TokenContext("p", np.zeros((4, 2), dtype=int), np.array([False, True, False, True]))
    state = torch.tensor([[1.0], [50.0], [3.0], [-50.0]])
    vectors, *_ = pool_layer([state], Weighing.of([context], [Request.of("A2_max"), Request.of("A3_min")]))
    assert vectors[0, :, 0].tolist() == [3.0, 1.0]


def test_failures_stay_in_their_row() -> None:
    good, state, _ = passage(5, 1)
    bad = TokenContext("bad", np.zeros((5, 2), dtype=int), np.ones(5, dtype=bool))
    broken = state.clone()
    broken[2] = torch.nan
    requests = [Request.of("A1_mean"), Request.of("S2_gradient"), Request.of("A4_norm_weighted")]
    vectors, outcomes, num_sinks = pool_layer([state, state, broken], Weighing.of([good, bad, good], requests))
    collector = VectorCollector(["good", "bad", "nan"], [r.id for r in requests], 8)
    for index in range(3):
        collector.add(index, vectors[index], outcomes[index], num_sinks[index])
    mean = collector.table("A1_mean").to_pylist()
    assert [row["status"] for row in mean] == ["ok", "failed", "non_finite"]
    assert [row["vector"] is None for row in mean] == [False, True, True]
    assert collector.table("S2_gradient")["status"].to_pylist()[0] == "failed"
    assert collector.table("A4_norm_weighted")["status"].to_pylist()[2] == "non_finite"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ((4, 7), [1]),  # the word itself
        ((3, 7), [1]),  # with the space before it
        ((5, 6), [1]),  # inside
        ((2, 5), [0, 1]),  # across two words
        ((3, 4), []),  # the space alone
        ((3, 3), []),  # trimmed white space
        ((0, 0), []),  # special token
        ((5, 5), [1]),  # no width, inside a word
        ((7, 9), []),  # behind the last word
    ],
)
def test_alignment_by_overlap(token: tuple[int, int], expected: list[int]) -> None:
    start, end = np.array([0, 4]), np.array([3, 7])
    hits = [w for w in (0, 1) if tokens_of_words(np.array([token]), start, end, np.arange(2) == w)[0]]
    assert hits == expected


@pytest.mark.parametrize(
    ("tokens", "first"),
    [
        ([(0, 3), (4, 7)], [0, 1]),
        ([(0, 2), (2, 3), (3, 7)], [0, 2]),  # the second word's token carries its space
        ([(0, 2), (2, 5), (5, 7)], [0, 1]),  # one token ends a word and begins the next
        ([(0, 1), (0, 1), (1, 3), (4, 5), (4, 5)], [0, 3]),  # a character split over two tokens
        ([(0, 0), (0, 7)], [1]),
        ([(3, 4), (7, 9)], []),
        ([], []),
    ],
)
def test_first_tokens_of_words(tokens: list[tuple[int, int]], first: list[int]) -> None:
    offsets = np.array(tokens, dtype=int).reshape(-1, 2)
    assert first_tokens_of_words(offsets, np.array([0, 4]), np.array([3, 7])).tolist() == first


def carried(signals: Signals) -> dict[str, np.ndarray]:
    """What kept states carry of the signals, in their precision."""
    return {name: np.asarray(signals[name], dtype=np.float32) for name in KEPT_SIGNALS}


def test_kept_states_give_the_same_vectors() -> None:
    contexts, states, signals = zip(*[passage(n, n) for n in (12, 6)], strict=True)
    kept = [
        KeptPassage(n, c.passage_id, h.numpy(), c.special, c.token_ids, c.offsets, carried(given))
        for n, (c, h, given) in enumerate(zip(contexts, states, signals, strict=True))
    ]
    late = KeptPassage(2, "late", error=CellError("failed", "too long"))
    tables = pool_kept([states_table([late, kept[1]], 8), states_table(kept[:1], 8)], REQUESTS)
    pooled = pool_layer(states, Weighing.of(contexts, REQUESTS), [carried(given) for given in signals])
    direct = VectorCollector(["12", "6"], UNANNOTATED, 8)
    for index, found in enumerate(zip(*pooled, strict=True)):
        direct.add(index, *found)
    for request in REQUESTS:
        table = tables[request.id]
        if not request.strategy.served_by_kept_states:
            assert table["status"].to_pylist() == ["failed"] * 3
            continue
        expected = vector_matrix(direct.table(request.id)["vector"])
        np.testing.assert_allclose(vector_matrix(table["vector"])[:2], expected, rtol=1e-5, atol=1e-6)
        assert table["status"].to_pylist() == ["ok", "ok", "failed"]


def test_errors_of_one_strategy_leave_the_others_alone() -> None:
    context, state, _ = passage(9, 4)
    requests = [Request.of("S1_attention"), Request.of("A1_mean")]
    vectors, outcomes, _ = pool_layer([state], Weighing.of([context], requests))
    assert isinstance(outcomes[0][0], CellError) and np.isnan(vectors[0, 0]).all()
    assert np.isfinite(vectors[0, 1]).all()


def test_listing_strategies_imports_no_torch() -> None:
    code = "import sys, poolbench.pooling as p; p.STRATEGIES.all(); print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"


def test_parts_lie_side_by_side_in_their_row() -> None:
    contexts, states, signals = zip(*[passage(n, n) for n in (9, 5)], strict=True)
    requests = [Request.of("S3_iti_probe"), Request.of("A1_mean")]
    broken = states[0].clone()
    broken[4] = torch.inf
    given = [signals[0], signals[0], {}]
    vectors, outcomes, num_sinks = pool_layer(
        [states[0], broken, states[1]], Weighing.of([*[contexts[0]] * 2, contexts[1]], requests), given
    )
    collector = VectorCollector(["good", "broken", "blind", "late"], [r.id for r in requests], 8)
    for index in range(3):
        collector.add(index, vectors[index], outcomes[index], num_sinks[index])
    collector.fail(3, CellError("failed", "too long"))
    table = collector.table("S3_iti_probe")
    assert parts_of(table) == (3, "best_heads") and parts_of(collector.table("A1_mean")) == (1, None)
    assert table["status"].to_pylist() == ["ok", "non_finite", "failed", "failed"]
    weights = signals[0]["head_inflow"][:, 1:] / signals[0]["head_inflow"][:, 1:].sum(axis=1, keepdims=True)
    expected = (weights @ states[0].numpy()[1:]).reshape(-1)
    np.testing.assert_allclose(vector_matrix(table["vector"])[0], expected, rtol=1e-5, atol=1e-6)
    assert collector.table("A1_mean")["status"].to_pylist() == ["ok", "non_finite", "ok", "failed"]
