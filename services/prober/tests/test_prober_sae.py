"""Direction C5 inside the prober: fitted on training folds, told with the autoencoder's id."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from poolbench.directions import Direction, SparseAutoencoder
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.vectors import PooledVectors


def autoencoder(width, num_features=64, seed=0):
    rng = np.random.default_rng(seed)
    decoder = rng.normal(size=(num_features, width)).astype(np.float32)
    tensors = {"W_enc": decoder.T.copy(), "W_dec": decoder, "b_dec": np.zeros(width, np.float32)}
    tensors["b_enc"] = np.zeros(num_features, np.float32)
    return SparseAutoencoder.from_bytes(save(tensors), json.dumps({"architecture": "topk", "k": 32}).encode())


@pytest.fixture(scope="module")
def design(train, params):
    return Design.build(train, None, params)


def by_direction(result):
    return {m.direction: m for m in result.measures if m.direction}


def test_c5_is_measured_where_the_layer_has_an_autoencoder(design, plant, params):
    vectors, sae = PooledVectors.from_matrix(plant(design.train, 3.0)), autoencoder(24)
    few = params.model_copy(update={"sae_features": 5})
    result = probe_cell(design, vectors, None, few, sae)
    row = by_direction(result)["C5"]
    assert row.value > 0.8
    assert row.params == {"sae": sae.id, "num_features": 5}
    found = result.directions["C5"]
    assert isinstance(found, Direction)
    features, labels = sae.encode(vectors.matrix_nW), design.train.labels
    difference = features[labels == 1].mean(axis=0) - features[labels == 0].mean(axis=0)
    top = np.argsort(-np.abs(difference))[:5]
    expected = difference[top] @ sae.w_dec[top]
    np.testing.assert_allclose(found.vector, expected / np.linalg.norm(expected), atol=1e-5)


def test_the_other_figures_do_not_depend_on_it(design, plant, params):
    vectors = PooledVectors.from_matrix(plant(design.train, 1.0))
    plain = probe_cell(design, vectors, None, params)
    with_sae = probe_cell(design, vectors, None, params, autoencoder(24))
    assert "C5" not in plain.directions
    rest = [m for m in with_sae.measures if m.direction != "C5"]
    assert rest == plain.measures


def test_an_autoencoder_of_another_width_takes_c5_down_alone(design, plant, params):
    result = probe_cell(design, PooledVectors.from_matrix(plant(design.train, 1.0)), None, params, autoencoder(8))
    rows = by_direction(result)
    assert (rows["C5"].status, rows["C1"].status) == ("failed", "ok")
    assert "reads width 8; the vectors have 24" in rows["C5"].reason


def test_a_collapsed_cell_has_a_null_c5(design, params):
    result = probe_cell(design, PooledVectors.from_matrix(np.ones((120, 24))), None, params, autoencoder(24))
    assert by_direction(result)["C5"].status == "collapsed"
    assert "C5" in result.directions
