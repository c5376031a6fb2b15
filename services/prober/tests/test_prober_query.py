"""One learned query: its gradient, the token it finds, and noise that stays noise."""

import numpy as np
import pytest
from scipy.optimize import check_grad

from poolbench.errors import CellError, InputError
from poolbench.pooling.states import KeptPassage, states_table
from poolbench.readouts import Training
from poolbench.readouts.query import Standardised, learned_query, loss_and_gradient, softmax_mean
from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.reading import RowReader
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.tokens import TokenStates
from poolbench_prober.inputs.vectors import PooledVectors

WIDTH = 12


def states_of(passages, mark=0.0, seed=0):
    """Noise tokens; with ``mark``, one at random carries a mark (coordinate 0) and the class (coordinate 1)."""
    rng = np.random.default_rng(seed)
    states = []
    for label in passages.labels:
        h_TD = rng.normal(size=(rng.integers(15, 30), WIDTH))
        place = rng.integers(len(h_TD))
        h_TD[place, 0] += mark
        h_TD[place, 1] += mark / 3 * (2 * label - 1)
        states.append(h_TD.astype(np.float32))
    return states


def kept(passages, states, padding=0):
    """The same as shards, in another order, with special tokens before and after."""
    junk = np.full((1, WIDTH), 1e4, np.float32)
    rows = []
    for position, (passage_id, h_TD) in enumerate(zip(passages.ids, states, strict=True)):
        special = np.zeros(len(h_TD) + 2 * padding, bool)
        special[:padding] = special[len(special) - padding :] = True
        hidden = np.concatenate([*[junk] * padding, h_TD, *[junk] * padding])
        offsets = np.zeros((len(hidden), 2), np.int64)
        rows.append(KeptPassage(position, passage_id, hidden, special, None, offsets))
    return [states_table(rows[start::3], WIDTH) for start in (2, 0, 1)]


def tokens(passages, states, **options):
    return TokenStates.from_shards(kept(passages, states, **options), passages, "learned_query")


def as_parts(states):
    parts = np.empty((len(states), 1, 1), dtype=object)
    parts[:, 0, 0] = states
    return parts


def fit(states, *labelings):
    labels = np.stack(labelings, axis=1).astype(float)
    return learned_query(Training(as_parts(states), labels, np.arange(len(labels)) % 2, lambda vectors: vectors))


def auroc_of(passages, vectors, **params):
    params = ProbeParams(num_bootstrap=0, min_domain_class=1000, num_control_words=1, num_permutations=1, **params)
    result = probe_cell(Design.build(passages, None, params), vectors, None, params)
    return next(measure for measure in result.measures if measure.metric == "d1.auroc")


@pytest.mark.parametrize("seed", [0, 1])
def test_the_gradient_is_that_of_finite_differences(train, seed):
    rows = train.take(np.arange(10))
    standardised = Standardised.of(states_of(rows, mark=3.0))
    theta = np.random.default_rng(seed).normal(size=2 * WIDTH + 1)
    labels = rows.labels.astype(float)
    gap = check_grad(
        lambda x: loss_and_gradient(x, standardised, labels)[0],
        lambda x: loss_and_gradient(x, standardised, labels)[1],
        theta,
        epsilon=1e-6,
    )
    assert gap < 1e-5


def test_blocks_change_nothing(train, monkeypatch):
    states, labels = states_of(train, mark=3.0), train.labels.astype(float)
    theta = np.random.default_rng(0).normal(size=2 * WIDTH + 1)
    whole = loss_and_gradient(theta, Standardised.of(states), labels)
    monkeypatch.setattr("poolbench.readouts.query.BLOCK_TOKENS", 50)
    monkeypatch.setattr("poolbench.readouts.query.HELD_NUMBERS", 0)
    parted = loss_and_gradient(theta, Standardised.of(states), labels)
    assert parted[0] == pytest.approx(whole[0], rel=1e-12)
    np.testing.assert_allclose(parted[1], whole[1], rtol=1e-9, atol=1e-13)


def test_pooling_is_the_softmax_by_hand():
    h_TD = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]], np.float32)
    query = np.array([2 * np.log(3.0), 0.0, 7.0, 7.0])  # scores ln 3 and 0: weights 3/4 and 1/4
    np.testing.assert_allclose(softmax_mean(query, h_TD), [0.75, 0.5, 0, 0])
    np.testing.assert_allclose(softmax_mean(np.zeros(4), h_TD), h_TD.mean(axis=0))
    np.testing.assert_allclose(softmax_mean(1e6 * query, h_TD), h_TD[0])


@pytest.fixture(scope="module")
def planted(make_passages):
    passages = Passages.from_table(make_passages(100))
    return passages, states_of(passages, mark=6.0)


def test_a_token_at_a_random_place_is_found_where_the_mean_drowns_it(planted):
    passages, states = planted
    mean = PooledVectors.from_matrix(np.stack([h_TD.mean(axis=0) for h_TD in states]))
    learned = auroc_of(passages, tokens(passages, states))
    assert learned.status == "ok" and len(learned.details["readouts"]) == 5
    assert learned.value > 0.95 > auroc_of(passages, mean).value + 0.1


def test_noise_is_chance_out_of_fold(make_passages):
    passages = Passages.from_table(make_passages(40))
    values = [auroc_of(passages, tokens(passages, states_of(passages, seed=s)), seed=s).value for s in range(12)]
    assert abs(np.mean(values) - 0.5) < 0.06


def test_neither_order_nor_special_tokens_matter(planted):
    passages, states = planted
    order = np.random.default_rng(0).permutation(len(states))
    (straight,) = fit(states, passages.labels)
    (shuffled,) = fit([states[row] for row in order], passages.labels[order])
    np.testing.assert_allclose(shuffled.apply(as_parts(states)), straight.apply(as_parts(states)), rtol=1e-5, atol=1e-6)
    found, padded = tokens(passages, states), tokens(passages, states, padding=2)
    for row, h_TD in enumerate(states):
        np.testing.assert_array_equal(found.matrix_nW[row, 0], h_TD)
        np.testing.assert_array_equal(padded.matrix_nW[row, 0], h_TD)


def test_units_and_offsets_of_the_states_do_not_matter(planted):
    passages, states = planted
    (one,) = fit(states, passages.labels)
    other = [(1024 * h_TD + 512).astype(np.float32) for h_TD in states]
    (scaled,) = fit(other, passages.labels)
    wanted = 1024 * one.apply(as_parts(states)) + 512
    np.testing.assert_allclose(scaled.apply(as_parts(other)), wanted, rtol=1e-3, atol=1)


def test_a_constant_coordinate_is_ignored(planted):
    passages, states = planted
    (found,) = fit([np.pad(h_TD, ((0, 0), (0, 1)), constant_values=3.3) for h_TD in states[:40]], passages.labels[:40])
    pooled = found.apply(as_parts([np.pad(h_TD, ((0, 0), (0, 1)), constant_values=3.3) for h_TD in states]))
    np.testing.assert_allclose(pooled[:, -1], 3.3, rtol=1e-6)


def test_every_labeling_learns_alone(planted):
    passages, states = planted
    other = np.arange(len(states)) // 2 % 2
    first, second, constant = fit(states, passages.labels, other, np.ones(len(other)))
    (alone,) = fit(states, other)
    np.testing.assert_array_equal(second.apply(as_parts(states)), alone.apply(as_parts(states)))
    assert first.details != second.details
    assert isinstance(constant, CellError) and constant.status == "one_class"


def test_held_out_rows_have_no_influence(planted):
    passages, states = planted
    labels, rows = passages.labels[:, None].astype(float), np.arange(100)
    spoiled = [*states[:100], *[h_TD + 1e3 for h_TD in states[100:]]]
    found = [
        RowReader("learned_query").views(tokens(passages, s).matrix_nW, passages, rows, labels)[0]
        for s in (states, spoiled)
    ]
    matrix = tokens(passages, states).matrix_nW[:100]
    np.testing.assert_array_equal(found[0].vectors(matrix), found[1].vectors(matrix))


def test_more_states_than_memory_are_a_failure_with_a_reason(planted):
    passages, states = planted
    large = TokenStates.from_shards(kept(passages, states), passages, "learned_query", max_bytes=1 << 16)
    measure = auroc_of(passages, large)
    assert measure.status == "failed" and measure.value is None and "may hold" in measure.reason


def test_failed_passages_keep_their_reason_and_missing_ones_are_an_error(planted):
    passages, states = planted
    shards = kept(passages, [np.where(row == 5, np.nan, h_TD) for row, h_TD in enumerate(states)])
    found = TokenStates.from_shards(shards, passages, "learned_query")
    assert found.errors[5].status == "non_finite" and found.usable.sum() == len(states) - 1
    assert auroc_of(passages, found).status == "ok"
    with pytest.raises(InputError, match="lack"):
        TokenStates.from_shards(shards[:2], passages, "learned_query")
    with pytest.raises(InputError, match="twice"):
        TokenStates.from_shards([*shards, shards[0]], passages, "learned_query")
