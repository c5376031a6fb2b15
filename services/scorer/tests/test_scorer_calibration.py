"""Temperature, calibration error and AUROC against hand computations and independent implementations."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from poolbench_scorer.training.report import (
    TEMPERATURES,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    grouped_auroc,
)


def test_temperature_recovers_an_overconfident_scale() -> None:
    rng = np.random.default_rng(0)
    honest = rng.normal(0, 2, 20_000)
    labels = (rng.random(20_000) < expit(honest)).astype(int)
    temperature = fit_temperature(3 * honest, labels)
    assert temperature == pytest.approx(3, rel=0.05)
    before, after = (expected_calibration_error(expit(3 * honest / t), labels) for t in (1.0, temperature))
    assert after < before / 5


def overconfident(seed: int, num: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Margins 2.5 times too large, and labels."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(0, 2, num)
    return 2.5 * honest, (rng.random(num) < expit(honest)).astype(int)


@pytest.mark.parametrize("seed", range(4))
def test_temperature_is_sklearns_slope(seed: int) -> None:
    """A logistic regression on the margin alone, without intercept or penalty, has slope 1/T."""
    margins, labels = overconfident(seed)
    oracle = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(margins[:, None], labels)
    assert fit_temperature(margins, labels) == pytest.approx(1 / float(oracle.coef_[0, 0]), rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_brier_and_calibration_error_agree_with_sklearn(seed: int) -> None:
    margins, labels = overconfident(seed)
    probabilities = expit(margins)
    assert brier_score(probabilities, labels) == pytest.approx(brier_score_loss(labels, probabilities))
    # 400 distinct values in 10 bins of 40: the mean gap of sklearn's quantile bins
    frequency, mean = calibration_curve(labels, probabilities, n_bins=10, strategy="quantile")
    assert expected_calibration_error(probabilities, labels) == pytest.approx(np.abs(frequency - mean).mean())


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


def test_pairs_of_copies_of_one_group_do_not_count() -> None:
    """Every positive is above its own negative, and between pairs all is chance: copies would lift each resample."""
    rng = np.random.default_rng(1)
    base = np.repeat(rng.normal(0, 1, 12), 2)
    labels, groups = np.tile([1, 0], 12), np.repeat(np.arange(12), 2)
    found = grouped_auroc(base + 0.01 * labels, labels, groups, num_bootstrap=4000, seed=0)
    assert found.value == pytest.approx(roc_auc_score(labels, base + 0.01 * labels))
    assert found.interval is not None
    assert np.mean(found.interval) == pytest.approx(found.value, abs=0.01)


def test_interval_widens_when_groups_carry_the_spread() -> None:
    rng = np.random.default_rng(2)
    labels = np.tile([0, 1], 100)
    scores = labels + np.repeat(rng.normal(0, 2, 20), 10) * np.where(labels == 1, 1, -1)
    alone = grouped_auroc(scores, labels, np.arange(200), num_bootstrap=500, seed=0)
    grouped = grouped_auroc(scores, labels, np.repeat(np.arange(20), 10), num_bootstrap=500, seed=0)
    assert alone.value == grouped.value
    assert alone.interval is not None and grouped.interval is not None
    assert np.diff(grouped.interval) > 1.5 * np.diff(alone.interval)
