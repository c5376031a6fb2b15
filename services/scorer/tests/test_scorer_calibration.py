"""Temperature, calibration error and AUROC against hand computations and independent implementations."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from poolbench_scorer.auroc import grouped_auroc, link_groups, weighted_auroc
from poolbench_scorer.calibrate import TEMPERATURES, expected_calibration_error, fit_temperature


def test_temperature_recovers_an_overconfident_scale() -> None:
    rng = np.random.default_rng(0)
    honest = rng.normal(0, 2, 20_000)
    labels = (rng.random(20_000) < expit(honest)).astype(int)
    temperature = fit_temperature(3 * honest, labels)
    assert temperature == pytest.approx(3, rel=0.05)
    before, after = (expected_calibration_error(expit(3 * honest / t), labels) for t in (1.0, temperature))
    assert after < before / 5


@pytest.mark.parametrize("seed", range(8))
def test_calibration_never_raises_the_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    margins, labels = rng.normal(0, 3, 60), rng.integers(0, 2, 60)
    temperature = fit_temperature(margins, labels)
    before, after = (expected_calibration_error(expit(margins / t), labels) for t in (1.0, temperature))
    assert after <= before


def test_separable_validation_does_not_ask_for_certainty() -> None:
    margins = np.array([-2.0, -1.0, 1.0, 2.0])
    assert fit_temperature(margins, np.array([0, 0, 1, 1])) >= TEMPERATURES[0]


def test_calibration_error_by_hand() -> None:
    probabilities = np.array([0.1, 0.2, 0.8, 0.9])
    labels = np.array([0, 1, 1, 1])
    # two bins: |.15 - .5| and |.85 - 1|, each half of the weight
    assert expected_calibration_error(probabilities, labels, num_bins=2) == pytest.approx((0.35 + 0.15) / 2)


def test_auroc_agrees_with_sklearn_with_ties_and_weights() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 6, 50).astype(float), rng.integers(0, 2, 50)
    weights = rng.integers(0, 3, size=(4, 50))
    expected = [roc_auc_score(labels, scores, sample_weight=row) for row in weights]
    assert weighted_auroc(scores, labels, weights) == pytest.approx(expected)


def test_auroc_without_a_class_is_nan() -> None:
    labels = np.array([1, 1, 0])
    assert np.isnan(weighted_auroc(np.arange(3.0), labels, np.array([[1, 1, 0]]))).all()


def test_groups_are_connected_components() -> None:
    documents = ["a", "a", "b", "c", "d"]
    pairs = [None, "p", "p", None, "q"]
    groups = link_groups(documents, pairs).tolist()
    assert groups[0] == groups[1] == groups[2]
    assert len({groups[0], groups[3], groups[4]}) == 3


def test_equal_values_of_different_columns_link_nothing() -> None:
    assert len(set(link_groups(["a", "b"], ["b", "a"]).tolist())) == 2


def test_interval_widens_when_groups_carry_the_spread() -> None:
    rng = np.random.default_rng(2)
    labels = np.tile([0, 1], 100)
    scores = labels + np.repeat(rng.normal(0, 2, 20), 10) * np.where(labels == 1, 1, -1)
    alone = grouped_auroc(scores, labels, np.arange(200), num_bootstrap=500, seed=0)
    grouped = grouped_auroc(scores, labels, np.repeat(np.arange(20), 10), num_bootstrap=500, seed=0)
    assert alone.value == grouped.value
    assert alone.interval is not None and grouped.interval is not None
    assert np.diff(grouped.interval) > 1.5 * np.diff(alone.interval)
