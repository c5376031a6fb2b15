"""Attention sinks: which tokens they are, and what strategies do without them, by hand and against removed tokens."""

import numpy as np
import pytest
import torch

from poolbench.contracts.tables import vector_matrix
from poolbench.pooling import STRATEGIES, TokenContext
from poolbench.pooling.batch import Request, Weighing, find_sinks, pool_layer
from poolbench.pooling.kept import pool_kept
from poolbench.pooling.signals import SIGNALS
from poolbench.pooling.sinks import SinkRule
from poolbench.pooling.states import KeptPassage, states_table

INCLUDE = SinkRule(leave_out=False)
#: Strategies whose needs a test can make up without annotations.
REQUESTS = [Request.of(s.id) for s in STRATEGIES.all() if not s.reads_states and not s.reads_annotations]
WIDTH, LENGTH = 6, 30


def passage(special: list[int], sinks: list[int]) -> tuple[TokenContext, torch.Tensor, dict[str, np.ndarray]]:
    """A passage whose tokens have norms near 2.4, and its sinks ones of about 240."""
    rng = np.random.default_rng(3)
    states = rng.normal(size=(LENGTH, WIDTH)).astype(np.float32)
    states[sinks] *= 100
    added = np.isin(np.arange(LENGTH), special)
    context = TokenContext("p", np.zeros((LENGTH, 2), dtype=int), added, signals={"frequency": rng.random(LENGTH)})
    signals = {
        name: rng.random((2, LENGTH) if signal.per_head else LENGTH)
        for name, signal in SIGNALS.items()
        if signal.source in ("attention", "loss")
    }
    return context, torch.from_numpy(states), signals


def vectors_of(passage: tuple[TokenContext, torch.Tensor, dict[str, np.ndarray]], rule: SinkRule) -> np.ndarray:
    context, states, signals = passage
    return pool_layer([states], Weighing.of([context], REQUESTS), [signals], rule).vectors_BSD[0]


def test_what_a_sink_is_by_hand() -> None:
    norms = np.array([900.0, 10.0, 1.0, 1.0, 10.1, 1.0, 1.0])
    real = np.array([False, True, True, True, True, True, True])  # the BOS is neither a sink nor in the median
    assert SinkRule().find(norms, real).nonzero()[0].tolist() == [4]
    assert SinkRule(ratio=9).find(norms, real).nonzero()[0].tolist() == [1, 4]
    norms = np.array([1.0, 3.0, 20.0, 2.0])  # median 2.5
    assert not SinkRule(ratio=8).find(norms, np.ones(4, bool)).any()
    assert SinkRule(ratio=7.9).find(norms, np.ones(4, bool)).sum() == 1
    norms = np.array([np.inf, 1.0, np.nan, 1.0, 1.0])
    assert not SinkRule().find(norms, np.ones(5, bool)).any()


def test_the_rule_on_a_device_is_that_on_the_host() -> None:
    """Bit for bit, for passages of any length, with norms that are not finite, equal or at the bound itself."""
    rng = np.random.default_rng(5)
    norms_BT = rng.lognormal(sigma=2.0, size=(300, 12)).astype(np.float32)
    norms_BT[::3] = rng.integers(1, 4, size=norms_BT[::3].shape)
    norms_BT[rng.random(norms_BT.shape) < 0.02] = np.inf
    norms_BT[rng.random(norms_BT.shape) < 0.02] = np.nan
    real_BT = rng.random(norms_BT.shape) < rng.random((300, 1))
    for rule in (SinkRule(), SinkRule(ratio=1.5), SinkRule(ratio=1.0)):
        found_BT = find_sinks(rule, torch.from_numpy(norms_BT), torch.from_numpy(real_BT)).numpy()
        expected_BT = np.stack([rule.find(*row) for row in zip(norms_BT, real_BT, strict=True)])
        assert expected_BT.any() and np.array_equal(found_BT, expected_BT)


@pytest.mark.parametrize("name", [request.id for request in REQUESTS])
def test_without_sinks_a_strategy_is_that_of_the_passage_without_these_tokens(name: str) -> None:
    """A sink counts like a special token: it has no weight, and the tokens around it are numbered without it."""
    marked = vectors_of(passage([0, 1, 9], []), INCLUDE)
    found = vectors_of(passage([0], [1, 9]), SinkRule())
    row = [request.id for request in REQUESTS].index(name)
    if REQUESTS[row].strategy.leaves_out_sinks:
        np.testing.assert_allclose(found[row], marked[row], rtol=1e-6)
    else:
        np.testing.assert_array_equal(found[row], vectors_of(passage([0], [1, 9]), INCLUDE)[row])


def test_included_sinks_decide_the_mean_and_left_out_ones_do_not() -> None:
    context, states, signals = passage([], [0])
    row = [request.id for request in REQUESTS].index("A1_mean")
    np.testing.assert_allclose(vectors_of((context, states, signals), SinkRule())[row], states[1:].mean(0), rtol=1e-5)
    np.testing.assert_allclose(vectors_of((context, states, signals), INCLUDE)[row], states.mean(0), rtol=1e-5)


def test_position_strategies_keep_their_token_and_the_mean_over_all_keeps_all() -> None:
    names = {spec.id for spec in STRATEGIES.all() if not spec.leaves_out_sinks}
    assert names == {"P1_last_token", "P2_first_token", "P3_first_content", "A11_mean_all"}


def test_a_passage_has_other_sinks_at_another_layer() -> None:
    """Weights that do not depend on the layer are kept between layers, but not those of other sinks."""
    context, states, signals = passage([], [])
    plan = Weighing.of([context], REQUESTS)
    for sink in (0, 7, 0, 12):
        layer = states.clone()
        layer[sink] *= 100
        found = pool_layer([layer], plan, [signals])
        alone = pool_layer([layer], Weighing.of([context], REQUESTS), [signals])
        np.testing.assert_array_equal(found.vectors_BSD, alone.vectors_BSD)
        assert found.num_sinks == [1]


def test_kept_states_give_the_same_vectors_and_the_tables_count_sinks() -> None:
    context, states, signals = passage([0], [1, 9])
    kept = KeptPassage(0, "p", states.numpy(), context.special, None, context.offsets, signals)
    names = ("A1_mean", "A2_max", "A4_norm_weighted", "S1_attention", "P3_first_content")
    requests = [Request.of(name) for name in names]
    for rule in (SinkRule(), INCLUDE):
        tables = pool_kept([states_table([kept], WIDTH)], requests, sinks=rule)
        direct = pool_layer([states], Weighing.of([context], requests), [signals], rule).vectors_BSD[0]
        for name, expected in zip(names, direct, strict=True):
            np.testing.assert_allclose(vector_matrix(tables[name]["vector"])[0], expected, rtol=1e-6)
            left_out = 2 if rule.leave_out and name != "P3_first_content" else 0
            assert tables[name].select(["num_sinks", "num_left_out"]).to_pylist() == [
                {"num_sinks": 2, "num_left_out": left_out}
            ]
