"""Linear probes of every kind with one interface: two classes, several, or a real value; and how they converge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.solver.fits import fit_probes, fit_ridge, fit_softmax
from poolbench_prober.solver.interface import ProbeFit, SoftmaxFit


class Problem(NamedTuple):
    """Labels, or control labels, of one seed's split."""

    vectors_nD: np.ndarray
    values: np.ndarray  # class numbers, or real values [n]
    rows: Mapping[str, np.ndarray]  # of train, dev and test
    num_classes: int  # 0 in a regression
    params: TaskParams
    seed: int

    @property
    def is_regression(self) -> bool:
        """Return whether real values are predicted."""
        return not self.num_classes


class Fitted(NamedTuple):
    """A probe: what it predicts for every instance, and how it was fitted."""

    predicted: np.ndarray  # [n]
    details: dict[str, Any]


def score(regression: bool, truth: np.ndarray, predicted: np.ndarray, weights_Rm: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation or macro-F1 under each set of weights [R]."""
    return (weighted_pearson if regression else macro_f1)(truth, predicted, weights_Rm)


@dataclass(frozen=True)
class Linear:
    """A fitted linear map from vectors to one score per output. Other attributes as in `Solution`."""

    weights_DK: np.ndarray  # in the coordinates of the vectors; K classes, or one column for a regression
    intercepts: np.ndarray  # [K]
    gradient_ratio: float
    converged: bool
    num_iterations: int

    def scores(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return scores [n, K]."""
        return np.asarray(vectors_nD @ self.weights_DK + self.intercepts)

    def log_probabilities(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return the natural log of each class's probability [n, K]."""
        return np.asarray(log_softmax(self.scores(vectors_nD), axis=1))


def fit_classifiers(
    vectors_nD: np.ndarray, codes: np.ndarray, num_classes: int, c_values: Sequence[float], tolerance: float
) -> list[Linear]:
    """Return one L2-logistic classifier for each C.

    Args:
        codes: Class numbers [n]; all `num_classes` of them occur.
        tolerance: Gradient norm over its value at zero weights that counts as converged.
    """
    labels_nC, c_C = _repeated(codes, c_values)
    if num_classes > 2:
        many = fit_softmax(vectors_nD, labels_nC, num_classes, c_C, tolerance)
        return [_linear(many, p, many.weights_DPk[:, p], many.intercepts_Pk[p]) for p in range(len(c_C))]
    fit = fit_probes(vectors_nD, labels_nC.astype(np.float64), c_C, tolerance)
    zero_D = np.zeros(len(fit.weights_DK))
    return [
        _linear(fit, p, np.stack([zero_D, weights], axis=1), np.array([0.0, fit.intercepts[p]]))
        for p, weights in enumerate(fit.weights_DK.T)
    ]


def fit_regressions(
    vectors_nD: np.ndarray, values: np.ndarray, c_values: Sequence[float], tolerance: float
) -> list[Linear]:
    """Return one ridge regression for each C."""
    fit = fit_ridge(vectors_nD, *_repeated(values, c_values), tolerance)
    return [_linear(fit, p, fit.weights_DK[:, [p]], fit.intercepts[[p]]) for p in range(len(c_values))]


def _repeated(targets: np.ndarray, c_values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets once for each C, and the values of C."""
    return np.repeat(targets[:, None], len(c_values), axis=1), np.array(c_values, dtype=np.float64)


def _linear(fit: ProbeFit | SoftmaxFit, number: int, weights_DK: np.ndarray, intercepts: np.ndarray) -> Linear:
    return Linear(
        weights_DK=weights_DK,
        intercepts=intercepts,
        gradient_ratio=float(fit.gradient_ratio[number]),
        converged=bool(fit.converged[number]),
        num_iterations=int(fit.num_iterations[number]),
    )


def accuracy(codes: np.ndarray, predicted: np.ndarray, weights_Rn: np.ndarray) -> np.ndarray:
    """Return the share of correct predictions [R]; NaN where all weights are 0."""
    weights_Rn = weights_Rn.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(weights_Rn @ (codes == predicted) / weights_Rn.sum(axis=1))


def macro_f1(codes: np.ndarray, predicted: np.ndarray, weights_Rn: np.ndarray) -> np.ndarray:
    """Return the mean F1 over the classes that occur among labels or predictions [R].

    Reference: van Rijsbergen (1979), Information retrieval; the mean as in scikit-learn's `average="macro"`.
    """
    weights_Rn = weights_Rn.astype(np.float64)
    classes = np.union1d(codes, predicted)
    true_nK, found_nK = codes[:, None] == classes, predicted[:, None] == classes
    both_RK = weights_Rn @ (true_nK & found_nK)
    either_RK = weights_Rn @ true_nK.astype(float) + weights_Rn @ found_nK.astype(float)
    present = either_RK > 0  # a resample may lack a class
    f1_RK = np.divide(2 * both_RK, either_RK, out=np.zeros_like(either_RK), where=present)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(f1_RK.sum(axis=1) / present.sum(axis=1))


def weighted_pearson(values: np.ndarray, predicted: np.ndarray, weights_Rn: np.ndarray) -> np.ndarray:
    """Return Pearson correlation [R]; NaN where a side is constant."""
    weights_Rn = weights_Rn.astype(np.float64)
    x, y = values - values.mean(), predicted - predicted.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y, xy, xx, yy = (
            weights_Rn @ column / weights_Rn.sum(axis=1) for column in (x, y, x * y, x * x, y * y)
        )
        spread = np.maximum(xx - mean_x**2, 0) * np.maximum(yy - mean_y**2, 0)
        return np.where(spread > 0, (xy - mean_x * mean_y) / np.sqrt(spread), np.nan)


def is_constant(predicted: np.ndarray) -> bool:
    """Return whether all predictions are one value, but for rounding."""
    return bool(np.ptp(predicted) <= 1e-9 * np.abs(predicted).max(initial=0.0))


def fit_converged(problem: Problem, c_values: Sequence[float]) -> Fitted:
    """Return the probe of the C that is best on dev, of equal ones the smallest.

    Raises:
        CellError: `one_class` if train has one, `not_converged` if the probe of any C did not converge.
    """
    train, dev = problem.rows["train"], problem.rows["dev"]
    vectors, values, tolerance = problem.vectors_nD[train], problem.values[train], problem.params.tolerance
    if problem.is_regression:
        fits, classes = fit_regressions(vectors, values, c_values, tolerance), np.zeros(0, dtype=int)
    else:
        classes, codes = np.unique(values, return_inverse=True)  # a class that train lacks is never predicted
        if len(classes) < 2:
            raise CellError(Status.ONE_CLASS, "the control task has one class in train: its word types share one label")
        fits = fit_classifiers(vectors, codes, len(classes), c_values, tolerance)
    predicted = {}
    for c, linear in zip(c_values, fits, strict=True):
        if not linear.converged:
            reason = f"gradient ratio {linear.gradient_ratio:.1e} above the tolerance, C = {c}"
            raise CellError(Status.NOT_CONVERGED, reason)
        scores_nK = linear.scores(problem.vectors_nD)
        predicted[c] = scores_nK[:, 0] if problem.is_regression else classes[scores_nK.argmax(axis=1)]
    best = c_values[0]
    if len(c_values) > 1:
        ones = np.ones((1, len(dev)))
        on_dev = {
            c: float(score(problem.is_regression, problem.values[dev], of[dev], ones)[0]) for c, of in predicted.items()
        }
        best = max(sorted(on_dev), key=lambda c: np.nan_to_num(on_dev[c], nan=-np.inf))
    best_fit = fits[list(c_values).index(best)]
    details = {"C": best, "gradient_ratio": best_fit.gradient_ratio, "num_iterations": best_fit.num_iterations}
    return Fitted(predicted[best], details)
