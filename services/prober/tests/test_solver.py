"""Both solvers, and probes on folds in rotation, against scikit-learn at a tight tolerance."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from poolbench.errors import CellError
from poolbench_prober.solver import newton as newton_module
from poolbench_prober.solver.backend import numpy_backend
from poolbench_prober.solver.batch import choose_solver, get_solver
from poolbench_prober.solver.fits import fit_folds, fit_probes, fit_ridge, fit_softmax
from poolbench_prober.solver.interface import Problem
from poolbench_prober.solver.kernel import Standardised
from poolbench_prober.solver.rotation import fit_rotation


def make_data(num_rows, width, seed=0, shift=0.5):
    rng = np.random.default_rng(seed)
    labels = (rng.random(num_rows) < 0.4).astype(float)
    mixing = rng.normal(size=(width, width)) * np.exp(-np.arange(width) / 30)
    vectors = rng.normal(size=(num_rows, width)) @ mixing.T * 7 + 100 * rng.normal(size=width)
    vectors[labels == 1] += shift * vectors.std(axis=0) * rng.normal(size=width)
    return vectors, labels


def oracle(vectors, labels, c):
    standard = StandardScaler().fit(vectors)
    model = LogisticRegression(C=c, tol=1e-10, solver="newton-cholesky", max_iter=1000)
    model.fit(standard.transform(vectors), labels)
    weights = model.coef_[0] / standard.scale_
    return weights, model.intercept_[0] - standard.mean_ @ weights


@pytest.mark.parametrize(("num_rows", "width"), [(120, 40), (60, 150)])
def test_agrees_with_sklearn_for_every_labeling_and_c(num_rows, width):
    vectors, labels = make_data(num_rows, width)
    shuffled = np.random.default_rng(1).permutation(labels)
    columns, c_values = [labels, labels, labels, shuffled], [0.01, 1.0, 10.0, 1.0]
    fit = fit_probes(vectors, np.stack(columns, axis=1), np.array(c_values))
    assert fit.converged.all()
    for number, (column, c) in enumerate(zip(columns, c_values, strict=True)):
        weights, intercept = oracle(vectors, column, c)
        np.testing.assert_allclose(fit.weights_DK[:, number], weights, atol=1e-4 * np.abs(weights).max())
        expected = vectors @ weights + intercept
        np.testing.assert_allclose(fit.scores(vectors)[:, number], expected, atol=1e-3)


def test_gradient_of_the_stated_objective_vanishes():
    vectors, labels = make_data(80, 30)
    fit = fit_probes(vectors, labels[:, None], np.array([2.0]))
    standard = (vectors - vectors.mean(axis=0)) / vectors.std(axis=0)
    weights = fit.weights_DK[:, 0] * vectors.std(axis=0)
    margin = fit.scores(vectors)[:, 0]
    residual = 2.0 * (1 / (1 + np.exp(-margin)) - labels)
    gradient = np.append(weights + standard.T @ residual, residual.sum())
    start = np.append(standard.T @ (2.0 * (0.5 - labels)), 2.0 * (0.5 - labels).sum())
    assert np.linalg.norm(gradient) <= 1.01e-6 * np.linalg.norm(start)
    assert fit.gradient_ratio[0] == pytest.approx(np.linalg.norm(gradient) / np.linalg.norm(start), rel=1e-2)


def test_one_class_does_not_converge_and_identical_pairs_do() -> None:
    vectors, labels = make_data(40, 5)
    fit = fit_probes(vectors, np.stack([np.ones(40), labels], axis=1), np.ones(2))
    assert fit.converged.tolist() == [False, True]
    assert np.isinf(fit.gradient_ratio[0])
    # A window before the signal gives both members of a pair one vector: that is chance, not a null.
    vectors = np.repeat(np.random.default_rng(0).normal(size=(40, 16)), 2, axis=0)
    labels = np.tile([1.0, 0.0], 40)[:, None]
    fit = fit_probes(vectors, labels, np.array([1.0]))
    assert fit.converged.all()
    np.testing.assert_allclose(fit.weights_DK, 0, atol=1e-9)


@pytest.mark.parametrize("name", ["numpy", "torch:cpu"])
def test_folds_of_unequal_size_are_solved_as_if_alone(name):
    vectors, labels = make_data(90, 120)
    columns = np.stack([labels, 1 - labels], axis=1)
    training = [np.arange(20, 90), np.arange(50), np.r_[:40, 60:90]]
    solver = get_solver(name)
    together = fit_folds(vectors, columns, np.array([1.0, 10.0]), training, solver=solver)
    for rows, fit in zip(training, together, strict=True):
        alone = fit_probes(vectors[rows], columns[rows], np.array([1.0, 10.0]), solver=solver)
        np.testing.assert_allclose(fit.weights_DK, alone.weights_DK, atol=1e-6 * np.abs(alone.weights_DK).max())
        assert (fit.converged & alone.converged).all()


def test_float32_vectors_give_the_probes_of_float64():
    vectors, labels = make_data(80, 120)
    vectors = vectors.astype(np.float32)
    single = fit_probes(vectors, labels[:, None], np.ones(1))
    double = fit_probes(vectors.astype(np.float64), labels[:, None], np.ones(1))
    np.testing.assert_allclose(single.weights_DK, double.weights_DK, rtol=1e-9, atol=1e-12)


def test_small_problems_stay_on_the_processor():
    problem = Problem(np.zeros((10, 3)), np.arange(10), np.zeros((10, 1, 1)), np.ones(1))
    assert choose_solver([problem]).name == "numpy"
    with pytest.raises(ValueError, match="torch:cuda"):
        get_solver("sklearn")


def test_vectors_that_are_not_finite_are_refused_where_they_are_used():
    vectors, labels = make_data(40, 5)
    vectors[7, 2] = np.nan
    with pytest.raises(CellError, match="row 7") as caught:
        fit_probes(vectors, labels[:, None], np.ones(1))
    assert caught.value.status == "non_finite"
    (fit,) = fit_folds(vectors, labels[:, None], np.ones(1), [np.arange(8, 40)])
    assert fit.converged.all()


@pytest.mark.parametrize(
    ("labels", "c"), [(np.full((40, 1), 2.0), [1.0]), (np.ones((39, 1)), [1.0]), (np.ones((40, 1)), [0.0])]
)
def test_wrong_labels_shapes_and_penalties_are_refused(labels, c):
    with pytest.raises(ValueError):
        fit_probes(make_data(40, 5)[0], labels, np.array(c))


def test_a_probe_that_runs_out_of_steps_is_marked(monkeypatch):
    monkeypatch.setattr(newton_module, "MAX_NEWTON_STEPS", 1)
    vectors, labels = make_data(80, 120)
    fit = fit_probes(vectors, labels[:, None], np.array([10.0]))
    assert not fit.converged[0]
    assert 1e-6 < fit.gradient_ratio[0] < 1


def test_what_float32_cannot_solve_goes_on_in_float64():
    """A large C on collinear columns: the condition number is beyond float32. Not every processor solves 1e6."""
    rng = np.random.default_rng(0)
    labels = (rng.random(200) < 0.5).astype(float)
    vectors = rng.normal(size=(200, 1)) + 1e-5 * rng.normal(size=(200, 30))
    fit = fit_probes(vectors, labels[:, None], np.array([1e5]), tolerance=1e-8)
    assert fit.converged.all()
    weights, intercept = oracle(vectors, labels, 1e5)
    np.testing.assert_allclose(fit.scores(vectors)[:, 0], vectors @ weights + intercept, atol=1e-3)


@pytest.mark.parametrize("name", ["numpy", "torch:cpu"])
@pytest.mark.parametrize(("num_rows", "width"), [(300, 130), (150, 260)])
def test_rows_that_differ_by_rounding_only_do_not_spoil_the_weights(name, num_rows, width):
    """Windows before the rewrite, run in different batches: what K cannot see must not reach the weights."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        originals = rng.normal(size=(num_rows // 4, width)) * np.arange(1, width + 1) ** -0.7
        vectors = originals[rng.integers(0, num_rows // 4, num_rows)] + 1e-8 * rng.normal(size=(num_rows, width))
        labels = (rng.random(num_rows) < 0.05).astype(float)
        fit = fit_probes(vectors, labels[:, None], np.array([10.0]), solver=get_solver(name))
        assert fit.converged.all()
        standard = (vectors - vectors.mean(axis=0)) / vectors.std(axis=0)
        weights = fit.weights_DK[:, 0] * vectors.std(axis=0)
        residual = 10.0 * (1 / (1 + np.exp(-fit.scores(vectors)[:, 0])) - labels)
        gradient = np.append(weights + standard.T @ residual, residual.sum())
        assert np.linalg.norm(gradient) <= 1e-3 * np.linalg.norm(weights)


def test_a_constant_column_of_many_rows_is_constant():
    """The mean of 200,000 equal numbers is off by more than a rounding of one."""
    vectors = np.full((200_000, 2), 0.1)
    vectors[:, 0] = np.random.default_rng(0).normal(size=200_000)
    problem = Problem(vectors, np.arange(200_000), np.zeros((200_000, 1, 1)), np.ones(1))
    ((_, block, _, scales),) = Standardised([problem], numpy_backend()).blocks()
    assert (block[0, :, 1] == 0).all()
    assert scales[0, 0, 1] == 1
    assert block[0, :, 0].std() == pytest.approx(1)


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
        assert fit.solver == name
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
