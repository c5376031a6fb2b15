"""Linear probes of every kind with one interface: two classes, several, or a real value; and the choice of their C.

All are standardised on their training rows, leave the intercept unpenalised, and share the meaning of C: the loss
summed over rows weighs C, the squared weights 1/2 (so a ridge's alpha is 1 / C).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.solver.fits import fit_probes, fit_ridge, fit_softmax
from poolbench_prober.solver.interface import GiveUp, ProbeFit, SoftmaxFit


class Problem(NamedTuple):
    """Vectors with labels (or control labels), for the split of one seed."""

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
    """The predictions of a probe for all instances, and details of the fit."""

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
    vectors_nD: np.ndarray,
    codes: np.ndarray,
    num_classes: int,
    c_values: Sequence[float],
    tolerance: float,
    give_up: GiveUp | None = None,
) -> list[Linear]:
    """Fit one L2-regularised logistic classifier for each C.

    Args:
        codes: Class numbers [n], in which all `num_classes` classes occur.
        tolerance: Gradient norm, relative to the norm at zero weights, at which a fit has converged.
        give_up: As in `Problem` of the solver. Ignored for two classes, because such fits are quick.
    """
    labels_nC, c_C = _repeated(codes, c_values)
    if num_classes > 2:
        many = fit_softmax(vectors_nD, labels_nC, num_classes, c_C, tolerance, give_up=give_up)
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
    """Fit one ridge regression for each C."""
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
    """Return the share of correct predictions [R]. The share is NaN if all weights are 0."""
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
    """Return the Pearson correlation [R]. It is NaN if a side is constant."""
    weights_Rn = weights_Rn.astype(np.float64)
    x, y = values - values.mean(), predicted - predicted.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y, xy, xx, yy = (
            weights_Rn @ column / weights_Rn.sum(axis=1) for column in (x, y, x * y, x * x, y * y)
        )
        spread = np.maximum(xx - mean_x**2, 0) * np.maximum(yy - mean_y**2, 0)
        return np.where(spread > 0, (xy - mean_x * mean_y) / np.sqrt(spread), np.nan)


def is_constant(predicted: np.ndarray) -> bool:
    """Return whether all predictions are equal, up to rounding."""
    return bool(np.ptp(predicted) <= 1e-9 * np.abs(predicted).max(initial=0.0))


#: How far below the best score on dev a probe is left behind: this, or so many instances.
_MARGIN, _FEWEST = 0.01, 3


class _Race:
    """Says which probes of several C cannot be the best on dev any more, because large C are slow to fit.

    A probe is left behind if its score lies below the best one by more than the margin, and by three times what both
    changed in the last step.
    """

    def __init__(self, problem: Problem, classes: np.ndarray) -> None:
        dev = problem.rows["dev"]
        self._vectors_mD, self._truth, self._classes = problem.vectors_nD[dev], problem.values[dev], classes
        self.margin = max(_MARGIN, _FEWEST / len(dev))
        self._scores: np.ndarray | None = None

    def __call__(self, weights_DPk: np.ndarray, intercepts_Pk: np.ndarray) -> np.ndarray:
        """Return the probes [P] that are left behind, from weights [D, P, k] and intercepts [P, k]."""
        scores_mPk = np.tensordot(self._vectors_mD, weights_DPk, axes=1) + intercepts_Pk
        predicted_mP, ones = self._classes[scores_mPk.argmax(axis=-1)], np.ones((1, len(self._truth)))
        scores = np.array([macro_f1(self._truth, predicted, ones)[0] for predicted in predicted_mP.T])
        before, self._scores = self._scores, scores
        if before is None:
            return np.zeros(len(scores), dtype=bool)
        change, best = np.abs(scores - before), scores.argmax()
        return np.asarray(scores[best] - scores > self.margin + 3 * (change + change[best]))


class _OnDev(NamedTuple):
    """The probe of one C."""

    linear: Linear
    predicted: np.ndarray  # of all instances [n]
    score: float  # on dev; -inf if it has none


def fit_converged(problem: Problem, c_values: Sequence[float]) -> Fitted:
    """Fit the probe with the C that is best on dev. The smallest C wins ties.

    Raises:
        CellError: `one_class` if train has a single class, `not_converged` if a candidate for the best probe did not
            converge.
    """
    classes = np.zeros(0, dtype=int) if problem.is_regression else np.unique(problem.values[problem.rows["train"]])
    if not problem.is_regression and len(classes) < 2:
        raise CellError(Status.ONE_CLASS, "the control task has one class in train: its word types share one label")
    race = _Race(problem, classes) if len(classes) > 2 and len(c_values) > 1 else None
    probes = _on_dev(problem, classes, c_values, race)
    if race is not None:
        lowest = max(probe.score for probe in probes.values()) - race.margin
        near = [c for c, probe in probes.items() if probe.score >= lowest]
        left_behind = any(not probes[c].linear.converged for c in near)  # one that came near the best after all
        probes = _on_dev(problem, classes, near) if left_behind else {c: probes[c] for c in near}
    for c, (linear, _, _) in probes.items():
        if not linear.converged:
            reason = f"gradient ratio {linear.gradient_ratio:.1e} above the tolerance, C = {c}"
            raise CellError(Status.NOT_CONVERGED, reason)
    best_c = max(sorted(probes), key=lambda c: probes[c].score)
    linear, predicted, _ = probes[best_c]
    details = {"C": best_c, "gradient_ratio": linear.gradient_ratio, "num_iterations": linear.num_iterations}
    return Fitted(predicted, details)


def _on_dev(
    problem: Problem, classes: np.ndarray, c_values: Sequence[float], race: _Race | None = None
) -> dict[float, _OnDev]:
    """Return the probe of each C.

    Args:
        classes: Classes that train has; one that it lacks is never predicted.
    """
    train, dev, tolerance = problem.rows["train"], problem.rows["dev"], problem.params.tolerance
    vectors, values = problem.vectors_nD[train], problem.values[train]
    if problem.is_regression:
        fits = fit_regressions(vectors, values, c_values, tolerance)
    else:
        fits = fit_classifiers(vectors, np.searchsorted(classes, values), len(classes), c_values, tolerance, race)
    probes = {}
    for c, linear in zip(c_values, fits, strict=True):
        scores_nK = linear.scores(problem.vectors_nD)
        predicted = scores_nK[:, 0] if problem.is_regression else classes[scores_nK.argmax(axis=1)]
        (on_dev,) = score(problem.is_regression, problem.values[dev], predicted[dev], np.ones((1, len(dev))))
        probes[c] = _OnDev(linear, predicted, float(np.nan_to_num(on_dev, nan=-np.inf)))
    return probes
