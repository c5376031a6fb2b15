"""Fit the probes of one matrix; bad input raises an error with a status."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.solver.batch import choose_solver
from poolbench_prober.solver.interface import TOLERANCE, GiveUp, LossName, ProbeFit, Problem, SoftmaxFit, Solver


def fit_probes(
    vectors_nD: np.ndarray,
    labels_nK: np.ndarray,
    c_K: np.ndarray,
    tolerance: float = TOLERANCE,
    *,
    solver: Solver | None = None,
) -> ProbeFit:
    """Fit K binary probes: minimise C sum log(1 + exp(-y (w x + b))) + |w|^2 / 2, with b unpenalised.

    Vectors are standardised by their own mean and standard deviation (ddof 0) first.

    Args:
        vectors_nD: Training vectors [n, D], finite.
        labels_nK: Labels 0 or 1, one column per probe.
        c_K: Inverse regularisation of each probe.
        tolerance: A probe has converged if its gradient norm is at most this fraction of the gradient norm at w = 0,
            and at most 1e-3 of the norm of the (standardised) weights, which bounds the weights' relative error.
        solver: The implementation. The default depends on the machine and the size.

    Returns:
        The probes in the coordinates of the vectors. Probes that did not converge, or have no optimum because their
        column has one class, are marked and not dropped.

    Raises:
        CellError: `non_finite` if a vector is not finite.
        ValueError: Where shapes, labels or C are wrong.
    """
    (fit,) = fit_folds(vectors_nD, labels_nK, c_K, [np.arange(len(vectors_nD))], tolerance, solver=solver)
    return fit


def fit_folds(
    vectors_nD: np.ndarray,
    labels_nK: np.ndarray,
    c_K: np.ndarray,
    training: Sequence[np.ndarray],
    tolerance: float = TOLERANCE,
    *,
    solver: Solver | None = None,
) -> list[ProbeFit]:
    """Fit probes as in `fit_probes` on several sets of rows of one matrix, which is not copied.

    Each set is standardised separately.

    Args:
        training: Row numbers of each set.

    Raises:
        CellError: `non_finite` if a vector of a set is not finite.
        ValueError: Where shapes, labels or C are wrong.
    """
    labels_nK = np.asarray(labels_nK)
    if not np.isin(labels_nK, (0, 1)).all():
        raise ValueError(f"labels must be 0 or 1, got {np.unique(labels_nK)[:5].tolist()}")
    fits = _solve(vectors_nD, labels_nK, c_K, training, "logistic", tolerance, solver)
    two_classes = [np.ptp(labels_nK[rows], axis=0) > 0 for rows in training]
    return [  # a probe of one class has no optimum
        replace(
            fit, gradient_ratio=np.where(has_both_K, fit.gradient_ratio, np.inf), converged=fit.converged & has_both_K
        )
        for fit, has_both_K in zip(fits, two_classes, strict=True)
    ]


def fit_ridge(
    vectors_nD: np.ndarray,
    targets_nK: np.ndarray,
    c_K: np.ndarray,
    tolerance: float = TOLERANCE,
    *,
    solver: Solver | None = None,
) -> ProbeFit:
    """Fit K linear regressions: minimise C |Xw + b - y|^2 / 2 + |w|^2 / 2 on standardised X, with b unpenalised.

    Args:
        vectors_nD: Training vectors [n, D], finite.
        targets_nK: Finite targets, one column per probe.
        c_K: Inverse regularisation: 1 / alpha of ridge regression.

    Raises:
        CellError: `non_finite` if a vector or target is not finite.
        ValueError: Where shapes or C are wrong.
    """
    targets_nK = np.asarray(targets_nK, dtype=np.float64)
    if not np.isfinite(targets_nK).all():
        raise CellError(Status.NON_FINITE, "targets of a regression probe hold NaN or infinity")
    return _solve(vectors_nD, targets_nK, c_K, [np.arange(len(vectors_nD))], "squared", tolerance, solver)[0]


def fit_softmax(
    vectors_nD: np.ndarray,
    classes_nP: np.ndarray,
    num_classes: int,
    c_P: np.ndarray,
    tolerance: float = TOLERANCE,
    *,
    give_up: GiveUp | None = None,
    solver: Solver | None = None,
) -> SoftmaxFit:
    """Fit P multinomial probes: minimise C times the cross-entropy + |W|^2 / 2, intercepts unpenalised.

    Every class has weights, as in scikit-learn's LogisticRegression for three or more classes. A class that no
    training row has is left out, with zero weights and intercept -inf.

    Args:
        classes_nP: Class numbers, one column per probe.
        give_up: As in `Problem`, where all columns have the same classes.

    Raises:
        CellError: `non_finite` if a vector is not finite, `one_class` if a column has a single class.
        ValueError: Where shapes, classes or C are wrong.
    """
    classes_nP = np.asarray(classes_nP)
    if classes_nP.min() < 0 or classes_nP.max() >= num_classes:
        raise ValueError(f"classes must lie in 0 ... {num_classes - 1}, got {np.unique(classes_nP)[:5].tolist()}")
    present_Pk = np.stack([np.isin(np.arange(num_classes), column) for column in classes_nP.T])
    if (present_Pk.sum(axis=1) < 2).any():
        raise CellError(Status.ONE_CLASS, "all training rows of a multinomial probe have one class")
    vectors, c_P = _checked(vectors_nD, classes_nP, c_P, [np.arange(len(vectors_nD))])
    num_probes = len(c_P)
    weights = np.zeros((vectors.shape[1], num_probes, num_classes))
    intercepts = np.full((num_probes, num_classes), -np.inf)
    ratio, converged = np.zeros(num_probes), np.zeros(num_probes, dtype=bool)
    steps, name = np.zeros(num_probes, dtype=int), ""
    for pattern in np.unique(present_Pk, axis=0):
        probes, present_classes = np.flatnonzero((present_Pk == pattern).all(axis=1)), np.flatnonzero(pattern)
        one_hot = (classes_nP[:, probes, None] == present_classes).astype(np.float64)
        problem = Problem(vectors, np.arange(len(vectors)), one_hot, c_P[probes], "softmax", give_up)
        (solution,) = (solver or choose_solver([problem])).solve([problem], tolerance)
        weights[:, probes[:, None], present_classes] = solution.weights_DPk
        intercepts[probes[:, None], present_classes] = solution.intercepts_Pk - solution.intercepts_Pk.mean(
            axis=1, keepdims=True
        )
        ratio[probes], converged[probes] = solution.gradient_ratio, solution.converged
        steps[probes], name = solution.num_iterations, solution.solver
    return SoftmaxFit(weights, intercepts, ratio, converged, steps, name)


def _solve(
    vectors_nD: np.ndarray,
    targets_nK: np.ndarray,
    c_K: np.ndarray,
    training: Sequence[np.ndarray],
    loss: LossName,
    tolerance: float,
    solver: Solver | None,
) -> list[ProbeFit]:
    vectors, c_K = _checked(vectors_nD, targets_nK, c_K, training)
    problems = [
        Problem(vectors, rows, np.asarray(targets_nK[rows], dtype=np.float64)[..., None], c_K, loss)
        for rows in training
    ]
    return [
        ProbeFit(
            solution.weights_DPk[..., 0],
            solution.intercepts_Pk[..., 0],
            solution.gradient_ratio,
            solution.converged,
            solution.num_iterations,
            solution.solver,
        )
        for solution in (solver or choose_solver(problems)).solve(problems, tolerance)
    ]


def _checked(
    vectors_nD: np.ndarray, targets_nK: np.ndarray, c_K: np.ndarray, training: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    vectors, c_K = np.asarray(vectors_nD), np.asarray(c_K, dtype=np.float64)
    if vectors.dtype not in (np.float32, np.float64):
        vectors = vectors.astype(np.float64)
    if vectors.ndim != 2 or targets_nK.shape != (len(vectors), len(c_K)):
        raise ValueError(f"vectors {vectors.shape}, targets {targets_nK.shape} and C {c_K.shape} do not fit together")
    if not (np.isfinite(c_K) & (c_K > 0)).all():
        raise ValueError(f"C must be positive and finite, got {c_K.tolist()}")
    if min(map(len, training)) == 0:
        raise ValueError("a probe needs training rows, got none")
    finite = np.array([np.isfinite(row).all() for row in vectors])  # row by row: no mask of the matrix's size
    wrong = np.flatnonzero(~finite)
    if np.isin(wrong, np.concatenate(list(training))).any():
        raise CellError(
            Status.NON_FINITE, f"{len(wrong)} of {len(vectors)} vectors hold NaN or infinity, e.g. row {wrong[0]}"
        )
    return vectors, c_K
