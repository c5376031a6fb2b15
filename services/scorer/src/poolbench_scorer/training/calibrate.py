"""Calibration of a binary classifier by one temperature, and how well probabilities match frequencies."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

#: Bounds of the temperature. Below .5 a separable validation set would ask for ever more confidence.
TEMPERATURES = (0.5, 10.0)


def fit_temperature(margins: np.ndarray, labels: np.ndarray) -> float:
    """The temperature that minimises the NLL of ``sigmoid(margin / T)``; 1 where that would raise the ECE.

    Args:
        margins: Logit of the concept minus logit of its absence [n], on texts not trained on.
        labels: 1 or 0 [n].

    Reference: Guo et al. (2017), "On Calibration of Modern Neural Networks", section 4.2.
    """
    signed = margins * np.where(labels == 1, 1.0, -1.0)
    found = minimize_scalar(
        lambda log_t: np.logaddexp(0, -signed / np.exp(log_t)).mean(),
        bounds=tuple(np.log(TEMPERATURES)),
        method="bounded",
    )
    temperature = float(np.exp(found.x))
    before = expected_calibration_error(expit(margins), labels)
    after = expected_calibration_error(expit(margins / temperature), labels)
    return temperature if after <= before else 1.0


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, num_bins: int = 10) -> float:
    """Mean gap between probability and frequency over bins of equal count, weighted by their size.

    Args:
        probabilities: P(concept) [n].
        labels: 1 or 0 [n].
        num_bins: Bins; with fewer texts than bins, one text a bin.

    Reference: Naeini et al. (2015), "Obtaining well calibrated probabilities using Bayesian binning"; bins of
    equal count instead of equal width, because trained classifiers leave the middle bins nearly empty.
    """
    order = np.argsort(probabilities, kind="stable")
    bins = np.array_split(order, min(num_bins, len(order)))
    gaps = [len(one) * abs(probabilities[one].mean() - labels[one].mean()) for one in bins]
    return float(sum(gaps) / len(order))


def brier_score(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean squared distance of P(concept) [n] from the label, 1 or 0 [n].

    Reference: Brier (1950), "Verification of forecasts expressed in terms of probability"; half of his figure,
    as is usual for two classes.
    """
    return float(np.mean((probabilities - labels) ** 2))
