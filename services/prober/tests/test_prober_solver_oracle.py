"""Both solvers against scikit-learn at a tight tolerance, over fuzzed shapes and ill-conditioned data."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

from poolbench_prober.solver.batch import get_solver
from poolbench_prober.solver.fits import fit_folds, fit_probes, fit_ridge, fit_softmax

SOLVERS = ["numpy", "torch:cpu"]
COEFFICIENTS, AUROC = 1e-3, 1e-4


@pytest.fixture(params=SOLVERS)
def solver(request):
    return get_solver(request.param)


def standardised(vectors):
    spread = vectors.std(axis=0)
    constant = spread <= 1e-12 * np.abs(vectors.mean(axis=0))
    spread[constant] = 1.0
    centred = vectors - vectors.mean(axis=0)
    centred[:, constant] = 0
    return centred / spread, spread


def sklearn_weights(vectors, labels, c):
    """Weights [D, k] of the standardised vectors, by whichever of its solvers reaches the smaller gradient."""
    best, best_norm = None, np.inf
    for name in ("newton-cholesky", "lbfgs"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=c, tol=1e-10, solver=name, max_iter=10_000).fit(vectors, labels)
        predicted = model.predict_proba(vectors)
        one_hot = (labels[:, None] == model.classes_).astype(float)
        gradient = model.coef_.T + c * vectors.T @ (predicted - one_hot)[:, -len(model.coef_) :]
        if np.linalg.norm(gradient) < best_norm:
            best, best_norm = (model.coef_.T, model.decision_function(vectors)), np.linalg.norm(gradient)
    return best


def assert_same(found, expected):
    assert np.linalg.norm(found - expected) <= COEFFICIENTS * np.linalg.norm(expected) + 1e-9


SPOILERS = ["none", "constant", "duplicated", "badly_scaled", "duplicated_rows", "massive", "offset"]


def spoiled(vectors, how):
    """Data that breaks careless solvers."""
    width = vectors.shape[1]
    if how == "constant":
        vectors[:, :: max(2, width // 3)] = 0.1
    elif how == "duplicated":
        vectors[:, width // 2 :] = vectors[:, : width - width // 2]
    elif how == "badly_scaled":
        vectors *= np.logspace(-8, 8, width)
    elif how == "duplicated_rows":
        vectors[1::2] = vectors[: 2 * (len(vectors) // 2) : 2]
    elif how == "massive":
        vectors[:, 0] = 1e4 + 1e3 * vectors[:, 0]
    elif how == "offset":
        vectors += 1e6
    return vectors


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_rows=st.integers(8, 90),
    width=st.integers(1, 150),
    how=st.sampled_from(SPOILERS),
    shift=st.sampled_from([0.0, 0.3, 5.0]),
    share=st.sampled_from([0.05, 0.3, 0.5]),
    c=st.sampled_from([0.01, 0.1, 1.0, 10.0, 1000.0]),
    seed=st.integers(0, 10_000),
)
def test_fuzzed_probes_agree_with_sklearn(num_rows, width, how, shift, share, c, seed):
    rng = np.random.default_rng(seed)
    labels = np.zeros(num_rows)
    labels[: max(2, round(share * num_rows))] = 1  # tiny classes too
    labels = rng.permutation(labels)
    vectors = rng.normal(size=(num_rows, width)) * np.arange(1, width + 1) ** -0.5
    vectors[labels == 1] += shift * rng.normal(size=width)
    vectors = spoiled(vectors, how)
    standard, spread = standardised(vectors)
    expected, margins = sklearn_weights(standard, labels, c)
    for name in SOLVERS:
        fit = fit_probes(vectors, labels[:, None], np.array([c]), solver=get_solver(name))
        assert fit.converged.all(), fit.gradient_ratio
        assert_same(fit.weights_DK[:, 0] * spread, expected[:, 0])
        own = roc_auc_score(labels, np.round(fit.scores(vectors)[:, 0], 5))
        assert own == pytest.approx(roc_auc_score(labels, np.round(margins, 5)), abs=AUROC + 2 / num_rows**2)


@pytest.mark.parametrize(("num_rows", "width"), [(90, 20), (60, 200)])
def test_softmax_agrees_with_sklearn(solver, num_rows, width):
    rng = np.random.default_rng(5)
    classes = rng.integers(0, 4, num_rows)
    vectors = rng.normal(size=(num_rows, width)) + rng.normal(size=(4, width))[classes] * 0.5
    standard, spread = standardised(vectors)
    c_values = np.array([0.01, 1.0, 10.0])
    fit = fit_softmax(vectors, np.tile(classes[:, None], 3), 4, c_values, solver=solver)
    assert fit.converged.all()
    for number, c in enumerate(c_values):
        expected, margins = sklearn_weights(standard, classes, c)
        assert_same(fit.weights_DPk[:, number] * spread[:, None], expected)
        scores = fit.scores(vectors)[:, number]
        centred = scores - scores.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(centred, margins - margins.mean(axis=1, keepdims=True), atol=5e-3)


def test_softmax_leaves_absent_classes_out(solver):
    rng = np.random.default_rng(6)
    vectors, classes = rng.normal(size=(50, 12)), rng.integers(0, 3, 50)
    fit = fit_softmax(vectors, (2 * classes)[:, None], 6, np.ones(1), solver=solver)
    compact = fit_softmax(vectors, classes[:, None], 3, np.ones(1), solver=solver)
    np.testing.assert_allclose(fit.scores(vectors)[:, 0, ::2], compact.scores(vectors)[:, 0], atol=1e-9)
    assert np.isneginf(fit.scores(vectors)[:, 0, 1::2]).all()
    assert (fit.weights_DPk[:, 0, 1::2] == 0).all()


@pytest.mark.parametrize(("num_rows", "width"), [(90, 20), (60, 200)])
def test_ridge_agrees_with_sklearn(solver, num_rows, width):
    rng = np.random.default_rng(7)
    vectors = rng.normal(size=(num_rows, width)) * 3 + 10
    targets = vectors @ rng.normal(size=(width, 2)) + rng.normal(size=(num_rows, 2))
    standard, spread = standardised(vectors)
    fit = fit_ridge(vectors, targets, np.array([0.1, 10.0]), solver=solver)
    assert fit.converged.all()
    for number, c in enumerate((0.1, 10.0)):
        model = Ridge(alpha=1 / c, solver="cholesky").fit(standard, targets[:, number])
        assert_same(fit.weights_DK[:, number] * spread, model.coef_)
        np.testing.assert_allclose(fit.scores(vectors)[:, number], model.predict(standard), rtol=1e-3, atol=1e-3)


def test_held_out_auroc_agrees_on_a_wide_matrix_in_folds(solver):
    """The shape of D1, smaller: decaying spectrum, float32 states, folds of unequal size in one batch."""
    rng = np.random.default_rng(8)
    basis = rng.normal(size=(120, 600))
    hidden = (rng.normal(size=(203, 120)) * np.arange(1, 121) ** -0.7) @ basis
    labels = (rng.random(203) < 0.5).astype(float)
    vectors = (hidden + 0.1 * rng.normal(size=hidden.shape) + labels[:, None] * rng.normal(size=600) * 0.05 + 5).astype(
        np.float32
    )
    folds = np.arange(203) % 4
    training = [np.flatnonzero(folds != fold) for fold in range(4)]
    columns = np.stack([labels, labels, rng.permutation(labels)], axis=1)
    fits = fit_folds(vectors, columns, np.array([0.01, 10.0, 1.0]), training, solver=solver)
    for fold, fit in enumerate(fits):
        rows, held = training[fold], folds == fold
        standard, spread = standardised(vectors[rows].astype(np.float64))
        for number, c in enumerate((0.01, 10.0, 1.0)):
            expected, _ = sklearn_weights(standard, columns[rows, number], c)
            assert_same(fit.weights_DK[:, number] * spread, expected[:, 0])
            reference = vectors[held] @ (expected[:, 0] / spread)
            own = roc_auc_score(columns[held, number], fit.scores(vectors[held])[:, number])
            assert own == pytest.approx(roc_auc_score(columns[held, number], reference), abs=AUROC)
