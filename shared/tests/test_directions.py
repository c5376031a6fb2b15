"""Directions, their erasure and sparse autoencoders by hand, against numpy and scikit-learn."""

import json
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save
from sklearn.covariance import LedoitWolf

from poolbench.directions import (
    DirectionContext,
    SparseAutoencoder,
    available_directions,
    compute_direction,
    null_directions,
    permuted_labels,
)
from poolbench.directions.erasure import Leace, orthonormal, without_directions
from poolbench.directions.registry import CONSTRUCTIONS
from poolbench.directions.sae_files import read_folder
from poolbench.directions.sae_formats.converted import read_tensors
from poolbench.errors import CellError, InputError

NO_PAIRS = np.zeros((0, 2), dtype=int)


def make_context(num_pairs=30, width=8, seed=0, paired=True, shift=2.0):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(num_pairs, width)) * np.linspace(3, 0.5, width)
    towards = np.eye(width)[width - 1] * shift
    vectors = np.concatenate([base + towards + 0.1 * rng.normal(size=base.shape), base])
    labels = np.repeat([1, 0], num_pairs)
    pairs = np.stack([np.arange(num_pairs), np.arange(num_pairs) + num_pairs], axis=1)
    return DirectionContext(vectors, labels, pairs if paired else NO_PAIRS, seed)


def test_c1_and_c4_by_hand():
    vectors = np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    found = compute_direction("C1", DirectionContext(vectors, np.array([1, 1, 0, 0]), NO_PAIRS))
    np.testing.assert_allclose(found.vector, [0.6, 0.8])
    assert found.raw_norm == 5
    centred = compute_direction("C1_centred", DirectionContext(vectors, np.array([1, 1, 0, 0]), NO_PAIRS))
    np.testing.assert_allclose(centred.vector * centred.raw_norm, [1.5, 2])
    of_one_pair = compute_direction("C4", DirectionContext(vectors, np.array([1, 1, 0, 0]), np.array([[0, 2]])))
    np.testing.assert_allclose(of_one_pair.vector * of_one_pair.raw_norm, [3, 4])
    # All pair differences are equal: centred they would vanish, uncentred they are the signal.
    vectors = np.array([[1.0, 1.0], [5.0, 2.0], [1.0, 0.0], [5.0, 1.0]])
    context = DirectionContext(vectors, np.array([1, 1, 0, 0]), np.array([[0, 2], [1, 3]]))
    np.testing.assert_allclose(compute_direction("C4", context).vector, [0, 1], atol=1e-12)


def test_versions_which_keys_of_earlier_runs_hold_stay():
    assert {construction.id for construction in CONSTRUCTIONS.all() if construction.version != 1} == set()


def test_directions_of_one_column_are_its_sign():
    """Its covariance is its own shrinkage target; its first component is as long as the centred column."""
    context = DirectionContext(np.array([[1.0], [2.0], [4.0], [6.0]]), np.array([1, 1, 0, 0]), NO_PAIRS)
    assert compute_direction("LDA", context).vector.tolist() == [-1.0]
    component = compute_direction("C2", context)  # of -2.25, -1.25, .75 and 2.75
    assert component.vector.tolist() == [-1.0] and component.raw_norm == pytest.approx(14.75**0.5)


@pytest.mark.parametrize("direction_id", ["C1", "C2", "C4", "LDA", "C1_centred"])
@pytest.mark.parametrize("width", [8, 200])
def test_directions_are_unit_and_point_to_the_positives(direction_id, width):
    context = make_context(width=width)
    vector = compute_direction(direction_id, context).vector
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-9)
    assert vector @ (context.positives.mean(axis=0) - context.negatives.mean(axis=0)) >= 0


@pytest.mark.parametrize("width", [8, 200])
def test_c2_and_lda_are_those_of_numpy_and_scikit_learn(width):
    context = make_context(width=width)
    centred = context.vectors_nD - context.vectors_nD.mean(axis=0)
    expected = np.linalg.svd(centred, full_matrices=False)[2][0]
    assert abs(compute_direction("C2", context).vector @ expected) == pytest.approx(1, abs=1e-9)
    context = make_context(width=width)
    means = np.stack([context.negatives.mean(axis=0), context.positives.mean(axis=0)])
    covariance = LedoitWolf(assume_centered=True).fit(context.vectors_nD - means[context.labels]).covariance_
    expected = np.linalg.solve(covariance, means[1] - means[0])
    np.testing.assert_allclose(compute_direction("LDA", context).vector, expected / np.linalg.norm(expected), atol=1e-8)


def test_c4_without_pairs_draws_them_by_seed():
    context = make_context(paired=False)
    first, again = (compute_direction("C4", context) for _ in range(2))
    np.testing.assert_array_equal(first.vector, again.vector)
    other = DirectionContext(context.vectors_nD, context.labels, NO_PAIRS, seed=9)
    assert not np.allclose(first.vector, compute_direction("C4", other).vector)
    assert first.seed == 0


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


def test_what_has_no_direction_is_typed():
    with pytest.raises(CellError, match="converged probe") as caught:
        compute_direction("C3", make_context())
    assert caught.value.status == "not_converged"
    same = DirectionContext(np.ones((4, 3)), np.array([1, 1, 0, 0]), NO_PAIRS)
    for direction_id in ("C1", "C2", "C4", "LDA"):
        with pytest.raises(CellError) as caught:
            compute_direction(direction_id, same)
        assert caught.value.status == "collapsed"
    with pytest.raises(CellError) as caught:
        compute_direction("C1", DirectionContext(np.ones((2, 3)), np.ones(2, dtype=int), NO_PAIRS))
    assert caught.value.status == "one_class"


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


W_ENC = np.array([[1.0, -1.0, 0.5], [0.0, 2.0, 0.5]], dtype=np.float32)
X = np.array([[1.0, 1.0], [-2.0, 0.5], [0.2, 0.0]])


def tensors(**extra):
    return {
        "W_enc": W_ENC,
        "W_dec": np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32),
        "b_dec": np.array([0.5, -0.5], dtype=np.float32),
        "b_enc": np.array([0.1, 0.0, -0.2], dtype=np.float32),
        **{name: np.array(value, dtype=np.float32) for name, value in extra.items()},
    }


def make(architecture, settings=None, **extra):
    config = {"architecture": architecture, "apply_b_dec_to_input": False, **(settings or {})}
    return SparseAutoencoder.from_bytes(save(tensors(**extra)), json.dumps(config).encode())


def by_hand(x, feature):
    return [[feature(row, j) for j in range(3)] for row in x]


def z(row, j):
    return row[0] * W_ENC[0, j] + row[1] * W_ENC[1, j] + (0.1, 0.0, -0.2)[j]


@pytest.mark.parametrize("name", ["jumprelu", "batchtopk", "BatchTopK"])
def test_thresholds_cut_but_do_not_shift(name):
    limits = (0.5, 0.9, -1.0)
    expected = by_hand(X, lambda row, j: max(0.0, z(row, j)) if z(row, j) > limits[j] else 0.0)
    np.testing.assert_allclose(make(name, threshold=limits).encode(X), expected, atol=1e-6)


def linear_sae(width):
    """Features that are the coordinates, all positive: the decoder gives every vector back."""
    eye = np.eye(width, dtype=np.float32)
    zero = np.zeros(width, dtype=np.float32)
    weights = {"W_enc": eye, "W_dec": eye, "b_dec": zero, "b_enc": zero}
    return SparseAutoencoder.from_bytes(save(weights), b'{"architecture": "relu"}')


def context(num_features, sae, **extra):
    rng = np.random.default_rng(1)
    labels = np.arange(40) % 2
    vectors = rng.uniform(1, 2, size=(40, 6)) + labels[:, None] * [0, 0.9, 0, -0.5, 0.2, 0]
    return DirectionContext(vectors, labels, NO_PAIRS, sae=sae, num_features=num_features, **extra)


def test_c5_takes_the_features_that_differ_most():
    made = context(6, linear_sae(6))
    np.testing.assert_allclose(compute_direction("C5", made).vector, compute_direction("C1", made).vector, atol=1e-6)
    made = context(2, linear_sae(6))
    difference = made.positives.mean(axis=0) - made.negatives.mean(axis=0)
    expected = np.zeros(6)
    expected[[1, 3]] = difference[[1, 3]]
    found = compute_direction("C5", made)
    np.testing.assert_allclose(found.vector * found.raw_norm, expected, atol=1e-6)
    known = context(2, made.sae, features_nF=made.sae.encode(made.vectors_nD))
    np.testing.assert_allclose(compute_direction("C5", known).vector, found.vector)


def test_activations_are_encoded_at_the_scale_they_have():
    """A threshold that the vectors reach at their own scale cuts them all at unit norm."""
    sae = linear_sae(6)
    jump = SparseAutoencoder("x", "jumprelu", sae.w_enc, sae.w_dec, sae.b_dec, {**sae.vectors, "threshold": 0.8})
    assert compute_direction("C5", context(6, jump)).raw_norm > 0.5
    made = context(6, jump)
    unit = made.vectors_nD / np.linalg.norm(made.vectors_nD, axis=1, keepdims=True)
    with pytest.raises(CellError, match="zero"):
        compute_direction("C5", DirectionContext(unit, made.labels, NO_PAIRS, sae=jump))


def test_c5_is_offered_only_with_an_autoencoder_and_says_so():
    assert "C5" not in available_directions()
    assert "C5" in available_directions(("sae",))
    with pytest.raises(CellError, match="needs a sparse autoencoder") as caught:
        compute_direction("C5", context(2, None))
    assert caught.value.status == "not_implemented"
    with pytest.raises(CellError, match="reads width 4; the vectors have 6") as caught:
        compute_direction("C5", context(2, linear_sae(4)))
    assert caught.value.status == "failed"


def header(dtype, shape, data):
    text = json.dumps({"t": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_half_and_brain_floats_are_read():
    assert read_tensors(save({"a": np.array([1.5, -2], np.float16)}))["a"].tolist() == [1.5, -2.0]
    brain = (np.array([1.5, -2.0], np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    assert read_tensors(header("BF16", [2], brain))["t"].tolist() == [1.5, -2.0]
    with pytest.raises(InputError, match="tensor t of the autoencoder is of I32"):
        read_tensors(header("I32", [1], bytes(4)))


@pytest.mark.parametrize(
    ("architecture", "settings", "extra", "message"),
    [
        ("vanilla", {}, {}, "architecture 'vanilla' of the autoencoder is unknown; known: standard, relu"),
        ("jumprelu", {}, {}, "the jumprelu autoencoder lacks threshold"),
        ("topk", {}, {}, "needs the whole number k"),
        ("topk", {"k": 9}, {}, "k is 9; it must lie between 1 and the 3 features"),
        ("relu", {"normalize_activations": "expected_average_only_in"}, {}, "fold the scale into its weights"),
        ("topk", {"k": 1, "rescale_acts_by_decoder_norm": True}, {}, "rescale_acts_by_decoder_norm"),
        ("relu", {"finetuning_scaling_factor": True}, {}, "finetuning_scaling_factor"),
        ("standard", {"activation_fn": "tanh-relu"}, {}, "activation 'tanh-relu'"),
        ("relu", {}, {"scaling_factor": [1.0, 2.0, 1.0]}, r"scales its features \(scaling_factor\)"),
        ("relu", {}, {"b_enc": [0.0, 0.0]}, r"b_enc has shape \(2,\)"),
        ("relu", {}, {"W_dec": np.zeros((2, 3))}, r"W_dec has shape \(2, 3\).*must be \(3, 2\)"),
        ("relu", {}, {"b_dec": [np.nan, 0.0]}, "b_dec of the autoencoder holds NaN"),
    ],
)
def test_what_cannot_be_encoded_with_is_refused(architecture, settings, extra, message):
    with pytest.raises(InputError, match=message):
        make(architecture, settings, **extra)


def test_files_are_found_beside_each_other_or_named(tmp_path):
    with pytest.raises(InputError, match=r"one \.safetensors file with cfg\.json"):
        read_folder(tmp_path)
    (tmp_path / "w.safetensors").write_bytes(save(tensors()))
    (tmp_path / "cfg.json").write_text('{"architecture": "relu"}')
    found = [SparseAutoencoder.from_bytes(*read_folder(p).values()) for p in (tmp_path, tmp_path / "w.safetensors")]
    assert found[0].id == found[1].id
    assert (found[0].width, found[0].num_features) == (2, 3)
    with pytest.raises(InputError, match="not a safetensors file"):
        SparseAutoencoder.from_bytes(b"nothing", b'{"architecture": "relu"}')
    with pytest.raises(InputError, match="not JSON"):
        SparseAutoencoder.from_bytes(save(tensors()), b"{")


def labelled(rows: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated vectors of two classes whose means differ."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 2
    return rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) + 3 * labels[:, None], labels


def test_directions_that_are_not_orthogonal_are_erased_together() -> None:
    vectors = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    erased = without_directions(vectors, np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]))
    np.testing.assert_allclose(erased, [[0, 0, 3], [0, 0, 6]], atol=1e-12)
    assert len(orthonormal(np.array([[1.0, 0.0], [2.0, 0.0]]))) == 1


def test_leace_by_hand() -> None:
    """Variances 4 and 1, uncorrelated; the label goes with the first coordinate alone, which is all that is removed."""
    vectors = np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]])
    erased = Leace.fit(vectors, np.array([1, 1, 0, 0])).apply(vectors + np.array([1.0, 0.0]))
    np.testing.assert_allclose(erased, [[0, 1], [0, -1], [0, 1], [0, -1]], atol=1e-12)


@pytest.mark.parametrize(("rows", "width"), [(60, 5), (20, 40)])
def test_leace_is_the_formula_of_the_paper(rows: int, width: int) -> None:
    """x - W^+ P W (x - mean) with W from an eigendecomposition, also with fewer vectors than dimensions."""
    vectors, labels = labelled(rows, width)
    centred = vectors - vectors.mean(axis=0)
    values, basis = np.linalg.eigh(centred.T @ centred / rows)
    used = values > values.max() * 1e-10
    whiten = (basis[:, used] / np.sqrt(values[used])) @ basis[:, used].T
    towards = whiten @ (centred.T @ (labels - labels.mean()) / rows)
    projection = np.outer(towards, towards) / (towards @ towards)
    expected = vectors - centred @ (np.linalg.pinv(whiten, rcond=1e-9) @ projection @ whiten).T
    erased = Leace.fit(vectors, labels).apply(vectors)
    np.testing.assert_allclose(erased, expected, atol=1e-6)
    means = [erased[labels == label].mean(axis=0) for label in (0, 1)]
    np.testing.assert_allclose(means[0], means[1], atol=1e-9)


def test_equal_classes_lose_nothing() -> None:
    vectors = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(Leace.fit(vectors, np.array([0, 0, 1, 1])).apply(vectors), vectors)
