"""Probes on folds in rotation, against scikit-learn and the solver of single fits."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from poolbench_prober.solver.fits import fit_probes
from poolbench_prober.solver.rotation import fit_rotation

C_VALUES = (0.01, 0.1, 1.0, 10.0)


def rotation(count: int, num_folds: int = 6) -> np.ndarray:
    """Whether each row is a training row of a fold: all but two of the folds are."""
    fold = np.arange(count) % num_folds
    return np.stack([(fold != number) & (fold != (number + 1) % num_folds) for number in range(num_folds)])


def easy(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    vectors = 3 * rng.normal(size=(600, 12)) + 40
    return vectors, (vectors[:, :3].sum(axis=1) + 6 * rng.normal(size=600) > 120).astype(int)


def stretched(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Heavy tails along few directions, and rare positives that a plane nearly separates."""
    hidden = rng.standard_t(3, (900, 10))
    vectors = hidden @ (rng.normal(size=(10, 40)) * np.exp(-np.arange(10) / 3)[:, None]) + 0.1 * rng.normal(
        size=(900, 40)
    )
    return vectors, (hidden[:, 1] > 1.5).astype(int)


def separable(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    vectors = rng.normal(size=(400, 8))
    return vectors, (vectors[:, 0] > 0).astype(int)


def repeated(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows three times, a constant column, and one that varies outside of the training rows of a fold alone."""
    vectors = np.repeat(rng.normal(size=(200, 10)), 3, axis=0)
    labels = (vectors[:, 0] + rng.normal(size=600) > 0).astype(int)
    vectors[:, 5], vectors[:, 6] = 1e3, 7.0
    vectors[~rotation(600)[2], 6] += rng.normal(size=int((~rotation(600)[2]).sum()))
    return vectors, labels


@pytest.mark.parametrize("kind", [easy, stretched, separable, repeated])
def test_every_probe_is_that_of_a_single_fit(kind):
    vectors, labels = kind(np.random.default_rng(0))
    is_train = rotation(len(labels))
    fit = fit_rotation(vectors, labels, is_train, C_VALUES, 1e-6)
    assert fit.converged_FP.all() and (fit.gradient_ratio_FP <= 1e-6).all()
    for fold, rows in enumerate(is_train):
        expected = fit_probes(
            vectors[rows], np.repeat(labels[rows, None], 4, axis=1).astype(float), np.array(C_VALUES), 1e-6
        )
        assert expected.converged.all()
        for number in range(len(C_VALUES)):
            # In the coordinates of the fold, where both penalise the weights.
            spread = vectors[rows].std(axis=0)
            theirs = expected.weights_DK[:, number] * spread
            ours = fit.weights_FPD[fold, number] * spread
            assert np.linalg.norm(ours - theirs) <= 2e-3 * np.linalg.norm(theirs)
        ours = vectors @ fit.weights_FPD[fold].T + fit.intercepts_FP[fold] > 0
        same = ours == (expected.scores(vectors) > 0)
        assert same[rows].mean() > 0.999  # a column that varies elsewhere alone has no weight, or any


def test_probabilities_are_those_of_scikit_learn():
    vectors, labels = easy(np.random.default_rng(1))
    is_train = rotation(len(labels))
    fit = fit_rotation(vectors, labels, is_train, (1.0,), 1e-8)
    for fold, rows in enumerate(is_train):
        oracle = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-12, solver="newton-cholesky"))
        expected = oracle.fit(vectors[rows], labels[rows]).decision_function(vectors)
        ours = vectors @ fit.weights_FPD[fold, 0] + fit.intercepts_FP[fold, 0]
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_rows_that_no_fold_trains_on_change_nothing():
    vectors, labels = easy(np.random.default_rng(2))
    is_train = rotation(len(labels))
    is_train[:, -100:] = False
    whole = fit_rotation(vectors, labels, is_train, (0.1, 1.0), 1e-8)
    part = fit_rotation(vectors[:-100], labels[:-100], is_train[:, :-100], (0.1, 1.0), 1e-8)
    np.testing.assert_allclose(whole.weights_FPD, part.weights_FPD, rtol=1e-5, atol=1e-9)
