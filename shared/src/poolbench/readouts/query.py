"""The readout of X1: one attention query over a passage's tokens, learned together with a logistic head."""

import numpy as np
from scipy.special import expit

from poolbench.cancellation import check_cancelled
from poolbench.errors import CellError
from poolbench.readouts import READOUTS, FittedReadout, Training
from poolbench.readouts.tokens import PENALTY, Standardised, least_loss


@READOUTS.register(
    "learned_query",
    version=1,
    summary="softmax attention of one query, learned with a logistic head on the training rows by L-BFGS; "
    "L2 0.01 on the standardised head and on query / sqrt(D)",
    reference="Lin et al. (2017), A structured self-attentive sentence embedding, with one query",
)
def learned_query(training: Training) -> list[FittedReadout | CellError]:
    """Learn a query under every labeling. The head is dropped: probes are fitted on the pooled vectors."""
    tokens = Standardised.of(list(training.parts_nPD.reshape(-1)))
    return [_learn(tokens, labels_n) for labels_n in training.labels_nK.T]


def softmax_mean(query_D: np.ndarray, h_TD: np.ndarray) -> np.ndarray:
    """Return the mean of the states [T, D], weighted by the softmax of h_t . q / sqrt(D), as float64 [D]."""
    h_TD = h_TD.astype(np.float64)
    scores_T = h_TD @ query_D / np.sqrt(len(query_D))
    weights_T = np.exp(scores_T - scores_T.max())
    pooled_D: np.ndarray = weights_T @ h_TD / weights_T.sum()
    return pooled_D


def loss_and_gradient(theta: np.ndarray, tokens: Standardised, labels_n: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the penalised mean logistic loss of a head on the attended tokens, and the gradient of the loss.

    With a = q / sqrt(D), token scores s_t = x_t . a, weights w = softmax(s), u_t = x_t . v and z = sum_t w_t u_t + b:
    dz/dv = sum_t w_t x_t and dz/da = sum_t w_t (u_t - z + b) x_t. Learning starts at zero, which is mean pooling.

    Args:
        theta: a [D], the head v [D] and its intercept b, in standardised coordinates.
        tokens: The training passages.
        labels_n: Labels 0 or 1.
    """
    a_D, v_D, bias = *np.split(theta[:-1], 2), theta[-1]
    penalised = theta * (np.arange(len(theta)) < len(theta) - 1)
    loss, gradient = PENALTY * penalised @ penalised / 2, PENALTY * penalised
    for rows, x_ND, starts in tokens.blocks():
        check_cancelled()
        sizes, signs = np.diff(np.append(starts, len(x_ND))), 2 * labels_n[rows] - 1
        # Matrix times vector twice: BLAS is several times slower for a matrix of two columns.
        s_N, u_N = x_ND @ a_D, x_ND @ v_D
        e_N = np.exp(s_N - np.repeat(np.maximum.reduceat(s_N, starts), sizes))
        w_N = e_N / np.repeat(np.add.reduceat(e_N, starts), sizes)
        z_n = np.add.reduceat(w_N * u_N, starts)
        margin_n = signs * (z_n + bias)
        loss += np.logaddexp(0, -margin_n).sum() / len(labels_n)
        slope_n = -signs * expit(-margin_n) / len(labels_n)
        slope_N = np.repeat(slope_n, sizes) * w_N
        pull_N = slope_N * (u_N - np.repeat(z_n, sizes))
        gradient = gradient + np.concatenate([pull_N @ x_ND, slope_N @ x_ND, [slope_n.sum()]])
    return float(loss), gradient


def _learn(tokens: Standardised, labels_n: np.ndarray) -> FittedReadout | CellError:
    width = len(tokens.mean_D)
    optimum = least_loss(loss_and_gradient, 2 * width + 1, tokens, labels_n)
    if isinstance(optimum, CellError):
        return optimum
    query_D = np.sqrt(width) * optimum.x[:width] / tokens.scale_D
    details = {"steps": int(optimum.nit), "loss": round(float(optimum.fun), 6)}
    return FittedReadout(lambda parts_m11: np.stack([softmax_mean(query_D, h) for h in parts_m11.reshape(-1)]), details)
