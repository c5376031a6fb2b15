"""The readouts of R1 and R2: each token is scored by one probe, and a passage by the mean or the highest score.

A mean of states hides a signal that few tokens carry; the highest score keeps it. Both pooled vectors lie along the
weights of the probe, so that a direction is those weights and a probe on the vectors reads the pooled score.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import expit

from poolbench.cancellation import check_cancelled
from poolbench.errors import CellError
from poolbench.readouts import READOUTS, FittedReadout, Training
from poolbench.readouts.tokens import PENALTY, Standardised, least_loss

_REFERENCE = "McKenzie et al. (2025), Detecting high-stakes interactions with activation probes (mean and max probes)"
#: From the log-odds of a passage's tokens [T] to its score.
Pooled = Callable[[np.ndarray], float]


@READOUTS.register(
    "mean_score",
    version=1,
    summary="mean over the tokens of the probability that a logistic probe gives to each, times its unit weights; "
    "the probe is fitted on tokens with the label of their passage, passages weighing alike, L2 0.01",
    reference=_REFERENCE,
)
def mean_score(training: Training) -> list[FittedReadout | CellError]:
    """Fit a probe on tokens under every labeling. Score a passage by the mean probability of its tokens."""
    return _learned(training, lambda margins_T: float(expit(margins_T).mean()))


@READOUTS.register(
    "max_score",
    version=1,
    summary="highest log-odds that a logistic probe gives to a token, times its unit weights; the probe is that of "
    "mean_score",
    reference=_REFERENCE,
)
def max_score(training: Training) -> list[FittedReadout | CellError]:
    """Fit a probe on tokens under every labeling. Score a passage by the highest log-odds of its tokens."""
    return _learned(training, lambda margins_T: float(margins_T.max()))


def loss_and_gradient(theta: np.ndarray, tokens: Standardised, labels_n: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the penalised logistic loss of tokens, averaged in each passage and then over passages, and its gradient.

    Args:
        theta: Weights [D] and intercept, in standardised coordinates. The intercept is not penalised.
        tokens: The training passages.
        labels_n: Labels 0 or 1.
    """
    penalised = theta * (np.arange(len(theta)) < len(theta) - 1)
    loss, gradient = PENALTY * penalised @ penalised / 2, PENALTY * penalised
    for rows, x_ND, starts in tokens.blocks():
        check_cancelled()
        sizes = np.diff(np.append(starts, len(x_ND)))
        signs_N = np.repeat(2 * labels_n[rows] - 1, sizes)
        weights_N = np.repeat(1 / (sizes * len(labels_n)), sizes)
        margin_N = signs_N * (x_ND @ theta[:-1] + theta[-1])
        loss += weights_N @ np.logaddexp(0, -margin_N)
        slope_N = -weights_N * signs_N * expit(-margin_N)
        gradient = gradient + np.append(slope_N @ x_ND, slope_N.sum())
    return float(loss), gradient


def _learned(training: Training, pooled: Pooled) -> list[FittedReadout | CellError]:
    tokens = Standardised.of(list(training.parts_nPD.reshape(-1)))
    return [_readout(tokens, labels_n, pooled) for labels_n in training.labels_nK.T]


def _readout(tokens: Standardised, labels_n: np.ndarray, pooled: Pooled) -> FittedReadout | CellError:
    optimum = least_loss(loss_and_gradient, len(tokens.mean_D) + 1, tokens, labels_n)
    if isinstance(optimum, CellError):
        return optimum
    weights_D = optimum.x[:-1] / tokens.scale_D
    offset = float(optimum.x[-1] - tokens.mean_D @ weights_D)
    details = {"steps": int(optimum.nit), "loss": round(float(optimum.fun), 6)}
    return FittedReadout(partial(_apply, weights_D, offset, pooled), details)


def _apply(weights_D: np.ndarray, offset: float, pooled: Pooled, parts_m11: np.ndarray) -> np.ndarray:
    scores_m = np.array([pooled(h_TD.astype(np.float64) @ weights_D + offset) for h_TD in parts_m11.reshape(-1)])
    return scores_m[:, None] * (weights_D / max(float(np.linalg.norm(weights_D)), np.finfo(float).tiny))
