"""scikit-learn's probes: one at a time, by whichever of its solvers reaches the solution first."""

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from common import Clock, Spent
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from poolbench.statistics.auroc import auroc
from probing.data import Protocol

#: Largest difference of a held-out AUROC at which two solutions count as one.
SAME_AUROC = 1e-4
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)


@dataclass(frozen=True)
class Way:
    """One configuration of scikit-learn."""

    solver: str
    tolerance: float = TOLERANCES[0]  # `tol`
    warm: bool = False  # whether the C of a labeling are fitted in rising order, each from the last solution
    single: bool = False  # whether the vectors are float32


#: liblinear penalises the intercept, so that its solution is another one; it is timed, and never chosen.
CANDIDATES = (
    Way("lbfgs"),
    Way("lbfgs", warm=True),
    Way("lbfgs", single=True),
    Way("newton-cg"),
    Way("newton-cg", warm=True),
    Way("newton-cg", single=True),
    Way("newton-cg", warm=True, single=True),
)
TIMED_ONLY = (Way("newton-cholesky", 1e-6), Way("liblinear", 1e-6))


def fit_fold(work: Protocol, fold: int, columns: np.ndarray, way: Way) -> tuple[np.ndarray, Spent]:
    """Return held-out scores [m, columns] of some probes of one fold, and the time of standardising and fitting."""
    rows, held = work.training[fold], np.flatnonzero(work.folds == fold)
    clock = Clock()
    kind = np.float32 if way.single else np.float64
    scaler = StandardScaler().fit(work.vectors_ND[rows].astype(kind))
    vectors = scaler.transform(work.vectors_ND[rows].astype(kind))
    models = list(_models(work, rows, vectors, columns, way))
    spent = clock.read()
    held_out = scaler.transform(work.vectors_ND[held].astype(kind))
    return np.stack([held_out @ weights + intercept for weights, intercept in models], axis=1), spent


def _models(
    work: Protocol, rows: np.ndarray, vectors: np.ndarray, columns: np.ndarray, way: Way
) -> Iterator[tuple[np.ndarray, float]]:
    model = LogisticRegression(solver=way.solver, tol=way.tolerance, warm_start=way.warm, max_iter=10_000)
    for column in columns:
        if work.c_K[column] == work.c_K.min():  # a new labeling
            model = LogisticRegression(solver=way.solver, tol=way.tolerance, warm_start=way.warm, max_iter=10_000)
        model.C = work.c_K[column]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(vectors, work.labels_NK[rows, column])
        yield model.coef_[0].copy(), float(model.intercept_[0])


def differences(work: Protocol, fold: int, columns: np.ndarray, ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the absolute difference of the held-out AUROC of two sets of scores [columns]."""
    labels = work.labels_NK[np.ix_(work.folds == fold, columns)]
    pairs = zip(labels.T, ours.T, other.T, strict=True)
    return np.array([abs(auroc(truth, first) - auroc(truth, second)) for truth, first, second in pairs])


def choose(work: Protocol, columns: np.ndarray, converged: np.ndarray) -> tuple[Way, list[dict[str, Any]]]:
    """Return the fastest candidate that reaches the converged AUROCs, each at the loosest sufficient tolerance.

    The given probes are tried on fold 0, against their held-out scores at the optimum. The measurements of each
    candidate are returned too.
    """
    tried, matched = [], []
    for candidate in CANDIDATES:
        for tolerance in TOLERANCES:
            way = Way(candidate.solver, tolerance, candidate.warm, candidate.single)
            scores, spent = fit_fold(work, 0, columns, way)
            worst = float(differences(work, 0, columns, converged, scores).max())
            tried.append({**asdict(way), **asdict(spent), "auroc_difference": worst})
            if worst <= SAME_AUROC:
                matched.append((spent.cpu_s, way))
                break
    for way in TIMED_ONLY:
        scores, spent = fit_fold(work, 0, columns[-2:], way)
        worst = float(differences(work, 0, columns[-2:], converged[:, -2:], scores).max())
        tried.append({**asdict(way), "cpu_s": spent.cpu_s * len(columns) / 2, "auroc_difference": worst, "probes": 2})
    return min(matched, key=lambda pair: pair[0])[1], tried
