"""The probes of the protocol `corrected`: converged, and regularised as is best on dev."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.probing.models import fit_classifiers, fit_regressions
from poolbench_prober.probing.problem import Fitted, Problem, score


def fit(problem: Problem, c_values: Sequence[float]) -> Fitted:
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
