"""Online code lengths: nothing to learn costs nothing, and what the released formula gives."""

import numpy as np
import pytest

from poolbench_prober.tasks.class_code import code_lengths
from poolbench_prober.tasks.compression import BLOCKS, block_ends, constant_predictor, dealt_folds, laplace, send

CHOICES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def lengths(vectors, codes, num_classes=2, seed=0):
    return code_lengths(vectors, codes, num_classes, c_values=CHOICES, plain_c=1.0, tolerance=1e-5, seed=seed)


def random_labels(count, width, seed, num_classes=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)), rng.integers(0, num_classes, count)


@pytest.mark.parametrize("width", [64, 256, 768])
def test_random_labels_are_not_compressed_at_any_width(width):
    values = [lengths(*random_labels(1400, width, seed), seed=seed).compression for seed in range(3)]
    assert all(0.98 <= value <= 1.02 for value in values), values


def test_random_labels_of_several_classes_are_not_compressed():
    assert 0.98 <= lengths(*random_labels(1000, 32, 0, num_classes=4), num_classes=4).compression <= 1.02


def test_random_labels_of_fifty_classes_are_not_compressed():
    """Learning fifty equal frequencies costs a fortieth of all bits; stratified inner folds flatter who learns them."""
    values = [lengths(*random_labels(1000, 32, seed, num_classes=50), 50, seed).compression for seed in range(2)]
    assert all(0.98 <= value <= 1.02 for value in values), values


def test_frequencies_are_used_where_they_save_more_than_their_standard_error():
    uniform = np.full(4, -np.log(4))
    np.testing.assert_allclose(constant_predictor(np.array([0, 0, 0, 0])), uniform)
    np.testing.assert_allclose(constant_predictor(np.array([26, 24, 25, 25])), uniform)
    skewed = np.array([90, 5, 3, 2])
    np.testing.assert_allclose(constant_predictor(skewed), np.log([91 / 104, 6 / 104, 4 / 104, 3 / 104]))
    np.testing.assert_allclose(np.exp(laplace(skewed)).sum(), 1)


@pytest.mark.parametrize(("count", "width", "expected"), [(2000, 64, 0.80), (1400, 768, 0.32)])
def test_an_unregularised_probe_pays_for_its_width(count, width, expected):
    assert lengths(*random_labels(count, width, 1), seed=1).unregularised == pytest.approx(expected, abs=0.03)


def test_released_formula_is_bits_over_nats_of_a_double_softmax():
    """With the uniform predictor each label costs ln 2 nats; a certain one -ln(e / (e + 1)), never less."""
    vectors, codes = random_labels(400, 3, 0)
    at_chance = code_lengths(vectors * 0, codes, 2, c_values=(), plain_c=1e-9, tolerance=1e-5, seed=0)
    assert at_chance.released == pytest.approx(1 / np.log(2), abs=0.01)
    certain = lengths(np.repeat(10.0 * (2 * codes[:, None] - 1), 50, axis=1), codes)
    assert 3.0 < certain.released < 1 / np.log(1 + np.exp(-1)) == pytest.approx(3.192, abs=1e-3)


def test_labels_that_vectors_predict_are_compressed_and_mixed_ones_less():
    vectors, codes = random_labels(1000, 20, 2)
    vectors[:, 0] += 6 * codes
    clear = lengths(vectors, codes)
    noisy = np.where(np.random.default_rng(0).random(1000) < 0.2, 1 - codes, codes)
    assert clear.compression > 5
    # A fifth of the labels flipped: at most 1 / H(.2) = 1.385.
    assert 1.1 < lengths(vectors, noisy).compression < 1.4
    assert clear.uniform_bits == pytest.approx(1000)


def test_the_constant_predictor_takes_a_skewed_majority():
    rng = np.random.default_rng(3)
    codes = (rng.random(2000) < 0.1).astype(int)
    found = lengths(rng.normal(size=(2000, 64)), codes)
    entropy = -(codes.mean() * np.log2(codes.mean()) + (1 - codes.mean()) * np.log2(1 - codes.mean()))
    assert found.compression == pytest.approx(1 / entropy, rel=0.05)


def test_a_class_that_appears_late_costs_finitely_many_bits():
    vectors, codes = random_labels(500, 8, 4)
    codes[-3:] = 2
    found = lengths(vectors, codes, num_classes=3)
    assert np.isfinite([found.online_bits, found.plain_bits, found.released_nats]).all()


def test_blocks_end_where_voita_and_titov_end_them():
    assert block_ends(10_000) == [10, 20, 40, 80, 160, 320, 625, 1250, 2500, 5000, 10_000]
    assert len(BLOCKS) == 11
    assert block_ends(20)[-1] == 20
    assert len(set(block_ends(20))) == len(block_ends(20))


def test_inner_folds_deal_every_class_out_evenly():
    codes = np.repeat([0, 1, 2], [10, 5, 1])
    folds = dealt_folds(codes, 0)
    assert np.bincount(folds[codes == 0]).tolist() == [2] * 5
    assert np.bincount(folds[codes == 1]).tolist() == [1] * 5
    assert dealt_folds(np.array([0, 0, 0, 1]), 0) is None


class LostProbe:
    """Chooses a C whose probe of all labels sent has not converged: the constant predictor sends the block."""

    def choose(self, c_values):
        return c_values[0]

    def converged(self, c):
        return False

    def log_probabilities(self, block_mD, c):
        return np.log(np.full((len(block_mD), 2), 0.5))


def test_a_choice_that_did_not_converge_is_reported_as_the_constant_predictor():
    vectors, codes = random_labels(200, 3, 0)
    found = send(vectors, codes, 2, lambda sent: LostProbe(), c_values=CHOICES, plain_c=1.0, seed=0, released=True)
    assert set(found.chosen) == {None} and found.num_replaced == len(found.chosen)
    assert found.compression == pytest.approx(1)
