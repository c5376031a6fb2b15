"""Directions against hand computations, numpy and scikit-learn."""

import tracemalloc

import numpy as np
import pytest
from sklearn.covariance import LedoitWolf

from poolbench.directions import (
    CONSTRUCTIONS,
    DirectionContext,
    DirectionSpec,
    available_directions,
    compute_direction,
    null_directions,
    permuted_labels,
)
from poolbench.errors import CellError, ConfigError, UnknownNameError

NO_PAIRS = np.zeros((0, 2), dtype=int)


def make_context(num_pairs=30, width=8, seed=0, paired=True, shift=2.0):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(num_pairs, width)) * np.linspace(3, 0.5, width)
    towards = np.eye(width)[width - 1] * shift
    vectors = np.concatenate([base + towards + 0.1 * rng.normal(size=base.shape), base])
    labels = np.repeat([1, 0], num_pairs)
    pairs = np.stack([np.arange(num_pairs), np.arange(num_pairs) + num_pairs], axis=1)
    return DirectionContext(vectors, labels, pairs if paired else NO_PAIRS, seed)


def test_c1_by_hand_keeps_the_raw_norm():
    vectors = np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    found = compute_direction("C1", DirectionContext(vectors, np.array([1, 1, 0, 0]), NO_PAIRS))
    np.testing.assert_allclose(found.vector, [0.6, 0.8])
    assert found.raw_norm == 5


@pytest.mark.parametrize("direction_id", ["C1", "C2", "C4", "LDA", "C1_centred"])
@pytest.mark.parametrize("width", [8, 200])
def test_directions_are_unit_and_point_to_the_positives(direction_id, width):
    context = make_context(width=width)
    vector = compute_direction(direction_id, context).vector
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-9)
    assert vector @ (context.positives.mean(axis=0) - context.negatives.mean(axis=0)) >= 0


@pytest.mark.parametrize("width", [8, 200])
def test_c2_is_the_first_principal_component(width):
    context = make_context(width=width)
    centred = context.vectors_nD - context.vectors_nD.mean(axis=0)
    expected = np.linalg.svd(centred, full_matrices=False)[2][0]
    assert abs(compute_direction("C2", context).vector @ expected) == pytest.approx(1, abs=1e-9)


def test_c4_is_not_centred():
    # All pair differences are equal: centred they would vanish, uncentred they are the signal.
    vectors = np.array([[1.0, 1.0], [5.0, 2.0], [1.0, 0.0], [5.0, 1.0]])
    context = DirectionContext(vectors, np.array([1, 1, 0, 0]), np.array([[0, 2], [1, 3]]))
    np.testing.assert_allclose(compute_direction("C4", context).vector, [0, 1], atol=1e-12)


def test_c4_without_pairs_draws_them_by_seed():
    context = make_context(paired=False)
    first, again = (compute_direction("C4", context) for _ in range(2))
    np.testing.assert_array_equal(first.vector, again.vector)
    other = DirectionContext(context.vectors_nD, context.labels, NO_PAIRS, seed=9)
    assert not np.allclose(first.vector, compute_direction("C4", other).vector)
    assert first.seed == 0


@pytest.mark.parametrize("width", [8, 200])
def test_lda_is_ledoit_wolf_on_within_class_deviations(width):
    context = make_context(width=width)
    means = np.stack([context.negatives.mean(axis=0), context.positives.mean(axis=0)])
    covariance = LedoitWolf(assume_centered=True).fit(context.vectors_nD - means[context.labels]).covariance_
    expected = np.linalg.solve(covariance, means[1] - means[0])
    np.testing.assert_allclose(compute_direction("LDA", context).vector, expected / np.linalg.norm(expected), atol=1e-8)


@pytest.mark.parametrize("width", [3, 60])
def test_lda_of_many_rows_is_solved_by_the_smaller_side(width):
    """As many rows as this would need a matrix of 200 MB, and those of a large request one of 80 GB."""
    rng = np.random.default_rng(0)
    labels = np.arange(5_001) % 2
    vectors = rng.normal(size=(5_001, width)) * np.linspace(0.5, 2, width) + labels[:, None]
    context = DirectionContext(vectors, labels, np.zeros((0, 2), dtype=int))
    means = np.stack([context.negatives.mean(axis=0), context.positives.mean(axis=0)])
    covariance = LedoitWolf(assume_centered=True).fit(vectors - means[labels]).covariance_
    expected = np.linalg.solve(covariance, means[1] - means[0])
    tracemalloc.start()
    found = compute_direction("LDA", context).vector
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-8)
    assert peak < 50e6


def test_c3_needs_probe_weights():
    with pytest.raises(CellError, match="converged probe") as caught:
        compute_direction("C3", make_context())
    assert caught.value.status == "not_converged"


def test_mean_centring_is_parallel_to_the_difference_of_means():
    context = make_context()
    parallel = compute_direction("C1_centred", context).vector @ compute_direction("C1", context).vector
    assert parallel == pytest.approx(1)


def test_collapsed_and_one_class_are_typed():
    same = DirectionContext(np.ones((4, 3)), np.array([1, 1, 0, 0]), NO_PAIRS)
    for direction_id in ("C1", "C2", "C4", "LDA"):
        with pytest.raises(CellError) as caught:
            compute_direction(direction_id, same)
        assert caught.value.status == "collapsed"
    with pytest.raises(CellError) as caught:
        compute_direction("C1", DirectionContext(np.ones((2, 3)), np.ones(2, dtype=int), NO_PAIRS))
    assert caught.value.status == "one_class"


def test_registry_offers_near_names_and_refuses_duplicates():
    with pytest.raises(UnknownNameError, match="C1"):
        CONSTRUCTIONS.get("c1")
    with pytest.raises(ConfigError, match="registered twice"):
        CONSTRUCTIONS.add(DirectionSpec("C1", 1, "", "", len))
    assert CONSTRUCTIONS.get("C5") in CONSTRUCTIONS.all()
    assert "C5" not in available_directions()
    with pytest.raises(CellError) as caught:
        compute_direction("C5", make_context())
    assert caught.value.status == "not_implemented"


def test_permuted_labels_flip_inside_pairs_and_keep_counts():
    labels = np.array([1, 0, 1, 0, 1, 0, 0])
    pairs = np.array([[0, 1], [2, 3]])
    permuted = permuted_labels(labels, pairs, np.random.default_rng(0))
    assert (permuted[pairs].sum(axis=1) == 1).all()
    assert permuted[4:].sum() == 1


def test_null_directions_are_unit_seeded_and_uncorrelated_with_the_signal():
    context = make_context(num_pairs=200, width=50)
    nulls = null_directions(context.vectors_nD, context.labels, context.pairs_P2, num_nulls=20, seed=4)
    assert [null.id for null in nulls][:2] == ["null_000", "null_001"]
    matrix = np.stack([null.vector for null in nulls])
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1)
    again = null_directions(context.vectors_nD, context.labels, context.pairs_P2, num_nulls=3, seed=4)
    np.testing.assert_array_equal(again[2].vector, nulls[2].vector)
    signal = compute_direction("C1", context)
    assert all(null.raw_norm < 0.3 * signal.raw_norm for null in nulls)
    assert np.linalg.matrix_rank(matrix) == 20


def test_vectors_whose_products_overflow_are_typed():
    context = make_context(width=40)
    huge = DirectionContext(1e200 * context.vectors_nD, context.labels, context.pairs_P2)
    for direction_id in ("C1", "C2", "C4", "LDA"):
        with pytest.raises(CellError, match="overflow") as caught:
            compute_direction(direction_id, huge)
        assert caught.value.status == "non_finite"
    large = DirectionContext(1e38 * context.vectors_nD, context.labels, context.pairs_P2)  # as float32 may be
    for direction_id in ("C1", "C2", "C4", "LDA"):
        plain = compute_direction(direction_id, context).vector
        np.testing.assert_allclose(compute_direction(direction_id, large).vector, plain, atol=1e-8)
