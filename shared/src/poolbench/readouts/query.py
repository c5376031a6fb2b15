"""The readout of X1: one attention query over a passage's tokens, learned together with a logistic head."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from poolbench.cancellation import check_cancelled
from poolbench.errors import CellError
from poolbench.readouts import READOUTS, FittedReadout, Training
from poolbench.statuses import Status

#: L2 penalty on head and query, beside the mean logistic loss of the training rows.
PENALTY = 0.01
#: Most steps of L-BFGS; a query that still moves then is used as it is.
MAX_STEPS = 100
#: Tokens in float64 at a time.
BLOCK_TOKENS = 8192
#: Numbers that are kept in float64 between steps: 512 MiB. Changes speed only.
HELD_NUMBERS = 64 << 20

#: Rows of some passages, their tokens [N, D] and the first token of each.
Block = tuple[slice, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Standardised:
    """Token states of some passages in coordinates of mean 0 and deviation 1 over all their tokens.

    A shift changes no softmax and only the head's intercept. The scale gives the penalty the same meaning for any units
    and outlier coordinates.
    """

    states: Sequence[np.ndarray]  # real-token states [T, D] of each passage
    mean_D: np.ndarray  # mean token
    scale_D: np.ndarray  # deviation of each coordinate; 1 where a coordinate is constant

    @classmethod
    def of(cls, states: Sequence[np.ndarray]) -> "Standardised":
        """Measure mean and deviation, in two passes for accuracy."""
        total = sum(len(h_TD) for h_TD in states)
        mean_D = np.sum([h_TD.sum(axis=0, dtype=np.float64) for h_TD in states], axis=0) / total
        square_D = np.sum([np.square(h_TD - mean_D).sum(axis=0) for h_TD in states], axis=0)
        scale_D = np.sqrt(square_D / total)
        constant = scale_D <= 1e-7 * np.abs(mean_D)  # below what float32 can tell from its neighbour
        return cls(states, mean_D, np.where(constant | (scale_D == 0), np.inf, scale_D))

    @cached_property
    def _held(self) -> list[Block]:
        return list(self._blocks())

    def blocks(self) -> Iterable[Block]:
        """Return the blocks, held in float64 if they are small, else computed again."""
        num_numbers = sum(h_TD.size for h_TD in self.states)
        return self._held if num_numbers <= HELD_NUMBERS else self._blocks()

    def _blocks(self) -> Iterator[Block]:
        """Yield runs of passages: their rows, their tokens [N, D] and the first token of each."""
        lengths = np.array([len(h_TD) for h_TD in self.states])
        block_of = np.cumsum(lengths) // BLOCK_TOKENS
        for number in np.unique(block_of):
            rows = np.flatnonzero(block_of == number)
            passages = slice(int(rows[0]), int(rows[-1]) + 1)
            x_ND = (np.concatenate(self.states[passages]) - self.mean_D) / self.scale_D
            yield passages, x_ND, np.cumsum(lengths[rows]) - lengths[rows]


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
    """Return the mean of the states [T, D], weighted by the softmax of h_t . q / sqrt(D); float64 [D]."""
    h_TD = h_TD.astype(np.float64)
    scores_T = h_TD @ query_D / np.sqrt(len(query_D))
    weights_T = np.exp(scores_T - scores_T.max())
    pooled_D: np.ndarray = weights_T @ h_TD / weights_T.sum()
    return pooled_D


def loss_and_gradient(theta: np.ndarray, tokens: Standardised, labels_n: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the penalised mean logistic loss of a head on the attended tokens, and its gradient.

    With a = q / sqrt(D), token scores s_t = x_t . a, weights w = softmax(s), u_t = x_t . v and z = sum_t w_t u_t + b:
    dz/dv = sum_t w_t x_t and dz/da = sum_t w_t (u_t - z + b) x_t. Learning starts at zero, which is mean pooling.

    Args:
        theta: a [D], the head v [D] and its intercept b, in standardised coordinates.
        tokens: The training passages.
        labels_n: 0 or 1.
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
    if len(np.unique(labels_n)) < 2:
        return CellError(
            Status.ONE_CLASS, "a query is learned from passages of both classes; the training rows hold one"
        )
    width = len(tokens.mean_D)
    optimum = minimize(
        loss_and_gradient,
        np.zeros(2 * width + 1),
        (tokens, labels_n),
        method="L-BFGS-B",
        jac=True,
        options={"maxiter": MAX_STEPS, "maxfun": 2 * MAX_STEPS},
    )
    if not np.isfinite(optimum.x).all():
        return CellError(Status.NON_FINITE, "the learned query is not finite")
    query_D = np.sqrt(width) * optimum.x[:width] / tokens.scale_D
    details = {"steps": int(optimum.nit), "loss": round(float(optimum.fun), 6)}
    return FittedReadout(lambda parts_m11: np.stack([softmax_mean(query_D, h) for h in parts_m11.reshape(-1)]), details)
