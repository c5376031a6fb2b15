"""Logistic probes of two classes on folds in rotation: all folds and all C of a sample in one pass over its rows.

Every row is in the training part of most folds, so one product of the rows with the weights of all probes serves them
all, and the Gram matrices of training parts are sums of those of few blocks of rows. This pays where rows outnumber
columns; elsewhere, and for probes that it leaves, `fit_probes` is quicker.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from poolbench.cancellation import check_cancelled

#: Passes over the rows after which a probe is left unconverged; after how many it gets the true curvature; and steps
#: that the change of the curvature is estimated from.
MAX_PASSES, _REFRESH, _MEMORY = 160, 15, 12
#: Gradient norm over the norm of the weights that a probe must reach too; it bounds the relative error of the weights.
_ACCURACY = 1e-3
#: Variance over mean square below which their difference has lost digits.
_CANCELLED = 1e-6


_Factor = tuple[np.ndarray, bool]


class RotationFit(NamedTuple):
    """Probes by fold and C, in the coordinates of the vectors. Other fields as in `Solution`."""

    weights_FPD: np.ndarray
    intercepts_FP: np.ndarray
    gradient_ratio_FP: np.ndarray
    converged_FP: np.ndarray
    num_iterations_FP: np.ndarray


def fit_rotation(
    vectors_nD: np.ndarray, labels_n: np.ndarray, is_train_Fn: np.ndarray, c_values: Sequence[float], tolerance: float
) -> RotationFit:
    """Fit a probe for each fold and C: minimise C sum log(1 + exp(-y (w x + b))) + |w|^2 / 2, with b unpenalised.

    Vectors are standardised by mean and standard deviation (ddof 0) of the fold's training rows. Limited-memory BFGS
    starts from the inverse of C G / 4 + 1, where G is the Gram matrix of the standardised rows: C G / 4 bounds the
    curvature of the loss.

    Args:
        vectors_nD: Finite vectors of all folds of a sample.
        labels_n: Labels 0 or 1.
        is_train_Fn: Whether a row is a training row of a fold. Both labels occur in the training rows of each fold.
        tolerance: Gradient norm, relative to the norm at zero weights, at which a probe has converged.

    Reference: Nocedal & Wright, "Numerical optimization", 2nd ed., algorithm 7.4.
    """
    folds = _Folds(vectors_nD, is_train_Fn)
    num_folds, num_c = len(is_train_Fn), len(c_values)
    fold_of_Q, c_Q = np.repeat(np.arange(num_folds), num_c), np.tile(np.asarray(c_values, dtype=float), num_folds)
    factors = folds.upper_bounds(fold_of_Q, c_Q)
    # Parameters are weights in the fold's coordinates, and in the last row the intercept.
    parameters_EQ = np.zeros((vectors_nD.shape[1] + 1, len(c_Q)))
    margins_nQ = np.zeros((len(vectors_nD), len(c_Q)))
    targets_n1, scale_nQ = labels_n[:, None].astype(float), is_train_Fn[fold_of_Q].T * c_Q

    def gradient(at_EQ: np.ndarray, margins: np.ndarray, columns: np.ndarray) -> np.ndarray:
        residual = scale_nQ[:, columns] * (expit(margins) - targets_n1)
        change = folds.transposed(residual, fold_of_Q[columns])
        change[:-1] += at_EQ[:-1]
        return change

    every = np.arange(len(c_Q))
    gradient_EQ = gradient(parameters_EQ, margins_nQ, every)
    at_zero_Q = np.linalg.norm(gradient_EQ, axis=0)
    passes_Q, converged_Q = np.zeros(len(c_Q), dtype=int), np.zeros(len(c_Q), dtype=bool)
    history: list[tuple[np.ndarray, np.ndarray]] = []
    for number in range(MAX_PASSES):
        check_cancelled()
        norms_Q = np.linalg.norm(gradient_EQ, axis=0)
        close_Q = norms_Q <= _ACCURACY * np.linalg.norm(parameters_EQ[:-1], axis=0)
        converged_Q = (norms_Q <= tolerance * at_zero_Q) & close_Q
        active = np.flatnonzero(~converged_Q)
        if not len(active):
            break
        if number and number % _REFRESH == 0:
            history = []
            for probe in active:
                share_n = expit(margins_nQ[:, probe])
                curvature_n = scale_nQ[:, probe] * share_n * (1 - share_n)
                factors[probe] = folds.hessian(curvature_n, fold_of_Q[probe]) or factors[probe]
        of_active = [(step[:, active], change[:, active]) for step, change in history]
        step = -_two_loops(gradient_EQ[:, active], of_active, [factors[probe] for probe in active])
        moved_nA = folds.products(step, fold_of_Q[active])
        lengths = _lengths(
            margins_nQ[:, active], moved_nA, targets_n1, scale_nQ[:, active], parameters_EQ[:-1, active], step[:-1]
        )
        change_EQ = np.zeros_like(parameters_EQ)
        change_EQ[:, active] = lengths * step
        parameters_EQ += change_EQ
        margins_nQ[:, active] += lengths * moved_nA
        fresh_EQ = gradient_EQ.copy()
        fresh_EQ[:, active] = gradient(parameters_EQ[:, active], margins_nQ[:, active], active)
        history = [*history, (change_EQ, fresh_EQ - gradient_EQ)][-_MEMORY:]
        gradient_EQ = fresh_EQ
        passes_Q[active] += 1
    ratio_Q = np.linalg.norm(gradient_EQ, axis=0) / at_zero_Q
    weights_DQ, intercepts_Q = folds.in_coordinates_of_vectors(parameters_EQ, fold_of_Q)
    shape = num_folds, num_c
    return RotationFit(
        weights_DQ.T.reshape(*shape, -1),
        intercepts_Q.reshape(shape),
        ratio_Q.reshape(shape),
        converged_Q.reshape(shape),
        passes_Q.reshape(shape),
    )


def _factor(curvature_EE: np.ndarray) -> _Factor:
    """Return the Cholesky factor of the curvature of a loss with that of the penalty, which spares the intercept."""
    penalty_E = np.ones(len(curvature_EE))
    penalty_E[-1] = 1e-9 * max(1.0, curvature_EE[-1, -1])
    return cho_factor(curvature_EE + np.diag(penalty_E), lower=True, overwrite_a=True, check_finite=False)  # type: ignore[no-any-return]


class _Folds:
    """Rows of a sample, and the standardisation of each fold's training rows; Q is a probe of some fold."""

    def __init__(self, vectors_nD: np.ndarray, is_train_Fn: np.ndarray) -> None:
        self._weights_Fn = is_train_Fn.astype(float)
        counts_F1 = self._weights_Fn.sum(axis=1, keepdims=True)
        # About the means of all rows, so that large means cost no digits.
        self._centre_D = vectors_nD.mean(axis=0)
        self._rows_nD = vectors_nD - self._centre_D
        self._means_FD = self._weights_Fn @ self._rows_nD / counts_F1
        squares_FD = self._weights_Fn @ np.square(self._rows_nD) / counts_F1
        variances_FD = squares_FD - np.square(self._means_FD)
        for fold, column in np.argwhere(variances_FD < _CANCELLED * squares_FD):
            rows_m = self._rows_nD[is_train_Fn[fold], column]
            variances_FD[fold, column] = np.square(rows_m - rows_m.mean()).mean()
        deviations_FD = np.sqrt(variances_FD)
        size_FD = np.abs(self._means_FD + self._centre_D)
        varies_FD = deviations_FD > 1e-12 * size_FD  # the spread of the others is rounding noise
        self._inverse_FD = np.where(varies_FD, 1 / np.where(varies_FD, deviations_FD, 1.0), 0.0)
        self._single_nD: np.ndarray | None = None

    def upper_bounds(self, fold_of_Q: np.ndarray, c_Q: np.ndarray) -> list[_Factor]:
        """Return for each probe the Cholesky factor of C G / 4 + 1, an upper bound of the Hessian of the probe."""
        # Rows that are training rows of the same folds are one block.
        patterns_BF, block_of_n = np.unique(self._weights_Fn.T > 0, axis=0, return_inverse=True)
        blocks = [self._rows_nD[block_of_n.ravel() == block] for block in range(len(patterns_BF))]
        grams_BDD = [rows.T @ rows for rows in blocks]
        factors = list[_Factor]()
        for fold, weights_n in enumerate(self._weights_Fn):
            gram_DD = sum(gram for gram, pattern in zip(grams_BDD, patterns_BF, strict=True) if pattern[fold])
            hessian_EE = self._standardised(gram_DD, self._means_FD[fold] * weights_n.sum(), weights_n.sum(), fold)
            for c in c_Q[fold_of_Q == fold]:
                factors.append(_factor(0.25 * c * hessian_EE))
        return factors

    def hessian(self, curvature_n: np.ndarray, fold: int) -> _Factor | None:
        """Return the Cholesky factor of the Hessian for given curvatures of the loss, or None if rounding prevents it.

        The Hessian is computed in single precision, because gradients correct the resulting steps.
        """
        if self._single_nD is None:
            self._single_nD = self._rows_nD.astype(np.float32)
        rows = self._single_nD * np.sqrt(curvature_n)[:, None].astype(np.float32)
        gram_DD = (rows.T @ rows).astype(np.float64)
        hessian_EE = self._standardised(gram_DD, curvature_n @ self._rows_nD, curvature_n.sum(), fold)
        try:
            return _factor(hessian_EE)
        except np.linalg.LinAlgError:
            return None

    def _standardised(self, gram_DD: np.ndarray, sums_D: np.ndarray, total: float, fold: int) -> np.ndarray:
        """Return a weighted Gram matrix of the rows, and a column of ones, in the coordinates of a fold."""
        mean_D, inverse_D = self._means_FD[fold], self._inverse_FD[fold]
        centred_D = (sums_D - total * mean_D) * inverse_D
        crossed_DD = np.outer(mean_D, sums_D)
        centred_DD = gram_DD - crossed_DD - crossed_DD.T + total * np.outer(mean_D, mean_D)
        centred_DD *= np.outer(inverse_D, inverse_D)
        return np.block([[centred_DD, centred_D[:, None]], [centred_D[None, :], np.full((1, 1), total)]])

    def products(self, parameters_EQ: np.ndarray, fold_of_Q: np.ndarray) -> np.ndarray:
        """Return the margins [n, Q] of all rows under each probe, given parameters in the coordinates of its fold."""
        scaled_DQ = parameters_EQ[:-1] * self._inverse_FD[fold_of_Q].T
        shift_Q = parameters_EQ[-1] - np.einsum("qd,dq->q", self._means_FD[fold_of_Q], scaled_DQ)
        return np.asarray(self._rows_nD @ scaled_DQ + shift_Q)

    def transposed(self, residual_nQ: np.ndarray, fold_of_Q: np.ndarray) -> np.ndarray:
        """Return the products [D + 1, Q] of standardised rows, and a column of ones, with residuals."""
        sums_Q = residual_nQ.sum(axis=0)
        raw_DQ = self._rows_nD.T @ residual_nQ - self._means_FD[fold_of_Q].T * sums_Q
        return np.vstack([raw_DQ * self._inverse_FD[fold_of_Q].T, sums_Q])

    def in_coordinates_of_vectors(
        self, parameters_EQ: np.ndarray, fold_of_Q: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return weights [D, Q] and intercepts [Q] with the standardisation undone."""
        weights_DQ = parameters_EQ[:-1] * self._inverse_FD[fold_of_Q].T
        means_QD = self._means_FD[fold_of_Q] + self._centre_D
        return weights_DQ, parameters_EQ[-1] - np.einsum("qd,dq->q", means_QD, weights_DQ)


def _two_loops(
    gradient_EA: np.ndarray,
    history: Sequence[tuple[np.ndarray, np.ndarray]],
    factors: Sequence[_Factor],
) -> np.ndarray:
    """Return the inverse of the estimated Hessian times the gradient, for each probe by itself."""
    direction, inner = gradient_EA.copy(), list[tuple[np.ndarray, np.ndarray]]()
    for steps, changes in reversed(history):
        curvature_A = np.einsum("ea,ea->a", steps, changes)
        # A probe that stood still then has no step there.
        rho_A = np.where(curvature_A > 0, 1 / np.where(curvature_A > 0, curvature_A, 1.0), 0.0)
        alpha_A = rho_A * np.einsum("ea,ea->a", steps, direction)
        direction -= alpha_A * changes
        inner.append((alpha_A, rho_A))
    for place, factor in enumerate(factors):
        direction[:, place] = cho_solve(factor, direction[:, place], check_finite=False)
    for (steps, changes), (alpha_A, rho_A) in zip(history, reversed(inner), strict=True):
        beta_A = rho_A * np.einsum("ea,ea->a", changes, direction)
        direction += (alpha_A - beta_A) * steps
    return direction


def _lengths(
    margins_nA: np.ndarray,
    moved_nA: np.ndarray,
    targets_n1: np.ndarray,
    scale_nA: np.ndarray,
    weights_DA: np.ndarray,
    step_DA: np.ndarray,
) -> np.ndarray:
    """Return lengths [A] at which the slope along the step is near 0, by the secant rule from 1.

    The margins change in proportion to the length, so that no product with the rows is needed.
    """
    linear_A, square_A = np.einsum("da,da->a", weights_DA, step_DA), np.einsum("da,da->a", step_DA, step_DA)

    def slope(lengths_A: np.ndarray, columns: np.ndarray) -> np.ndarray:
        margins = margins_nA[:, columns] + lengths_A[columns] * moved_nA[:, columns]
        residual = scale_nA[:, columns] * (expit(margins) - targets_n1)
        of_loss = np.einsum("na,na->a", residual, moved_nA[:, columns])
        return np.asarray(of_loss + linear_A[columns] + lengths_A[columns] * square_A[columns])

    lengths_A = np.ones(len(linear_A))
    start_A = slope(0 * lengths_A, np.arange(len(linear_A)))
    columns = np.arange(len(linear_A))
    for _ in range(30):
        slopes = slope(lengths_A, columns)
        over = slopes > -0.1 * start_A[columns]
        columns, slopes = columns[over], slopes[over]
        if not len(columns):
            break
        shrink = np.clip(start_A[columns] / (start_A[columns] - slopes), 0.1, 0.9)
        lengths_A[columns] *= shrink
    return lengths_A
