"""Sparse autoencoders of every architecture, and direction C5, by hand."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from poolbench.directions import DirectionContext, SparseAutoencoder, available_directions, compute_direction
from poolbench.directions.sae_files import read_folder
from poolbench.directions.sae_formats.converted import read_tensors
from poolbench.errors import CellError, InputError

NO_PAIRS = np.zeros((0, 2), dtype=int)
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


def z(row, j, bias=(0.1, 0.0, -0.2)):
    return row[0] * W_ENC[0, j] + row[1] * W_ENC[1, j] + bias[j]


def test_relu_and_standard_are_one():
    expected = by_hand(X, lambda row, j: max(0.0, z(row, j)))
    for name in ("relu", "standard"):
        np.testing.assert_allclose(make(name).encode(X), expected, atol=1e-6)


def test_apply_b_dec_to_input_subtracts_it_first():
    expected = by_hand(X - [0.5, -0.5], lambda row, j: max(0.0, z(row, j)))
    np.testing.assert_allclose(make("relu", {"apply_b_dec_to_input": True}).encode(X), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["jumprelu", "batchtopk", "BatchTopK"])
def test_thresholds_cut_but_do_not_shift(name):
    limits = (0.5, 0.9, -1.0)
    expected = by_hand(X, lambda row, j: max(0.0, z(row, j)) if z(row, j) > limits[j] else 0.0)
    np.testing.assert_allclose(make(name, threshold=limits).encode(X), expected, atol=1e-6)


def test_topk_keeps_the_largest_of_each_vector():
    full = make("relu").encode(X)
    found = make("topk", {"k": 1}).encode(X)
    np.testing.assert_allclose(found.max(axis=1), full.max(axis=1))
    assert ((found > 0).sum(axis=1) <= 1).all()
    by_kwargs = make("topk", {"activation_fn_kwargs": {"k": 2}})
    assert (by_kwargs.encode(np.array([[1.0, 1.0]])) > 0).sum() == 2


def test_a_standard_one_with_a_topk_activation_is_topk():
    for name in ("activation_fn", "activation_fn_str"):
        found = make("standard", {name: "topk", "activation_fn_kwargs": {"k": 1}})
        np.testing.assert_array_equal(found.encode(X), make("topk", {"k": 1}).encode(X))
    np.testing.assert_array_equal(make("standard", {"activation_fn_str": "relu"}).encode(X), make("relu").encode(X))


def test_gated_takes_the_gate_from_one_bias_and_the_size_from_another():
    extra = {"b_gate": (-0.5, 0.0, 0.3), "r_mag": (0.0, 0.5, -1.0), "b_mag": (0.1, -0.1, 0.0)}

    def feature(row, j):
        projected = z(row, j, bias=(0, 0, 0))
        gate = projected + extra["b_gate"][j] > 0
        return max(0.0, projected * np.exp(extra["r_mag"][j]) + extra["b_mag"][j]) if gate else 0.0

    np.testing.assert_allclose(make("gated", **extra).encode(X), by_hand(X, feature), atol=1e-6)


def test_a_vector_is_encoded_alike_alone_and_among_others():
    vectors = np.random.default_rng(0).normal(size=(50, 2))
    sae = make("topk", {"k": 2})
    np.testing.assert_allclose(sae.encode(vectors)[7:8], sae.encode(vectors[7:8]), atol=1e-6)


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


def test_c5_of_all_features_of_a_lossless_autoencoder_is_c1():
    made = context(6, linear_sae(6))
    np.testing.assert_allclose(compute_direction("C5", made).vector, compute_direction("C1", made).vector, atol=1e-6)


def test_c5_takes_the_features_that_differ_most_by_their_difference():
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
