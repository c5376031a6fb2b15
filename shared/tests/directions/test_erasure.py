"""Erasing directions, and all that a linear probe can read of a labelling."""

import numpy as np
import pytest

from poolbench.directions.erasure import Leace, orthonormal, without_directions


def labelled(rows: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated vectors of two classes whose means differ."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 2
    return rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) + 3 * labels[:, None], labels


def test_directions_that_are_not_orthogonal_are_erased_together() -> None:
    vectors = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    erased = without_directions(vectors, np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]))
    np.testing.assert_allclose(erased, [[0, 0, 3], [0, 0, 6]], atol=1e-12)
    assert len(orthonormal(np.array([[1.0, 0.0], [2.0, 0.0]]))) == 1


def test_leace_by_hand() -> None:
    """Variances 4 and 1, uncorrelated; the label goes with the first coordinate alone, which is all that is removed."""
    vectors = np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]])
    erased = Leace.fit(vectors, np.array([1, 1, 0, 0])).apply(vectors + np.array([1.0, 0.0]))
    np.testing.assert_allclose(erased, [[0, 1], [0, -1], [0, 1], [0, -1]], atol=1e-12)


@pytest.mark.parametrize(("rows", "width"), [(60, 5), (20, 40)])
def test_leace_is_the_formula_of_the_paper(rows: int, width: int) -> None:
    """x - W^+ P W (x - mean) with W from an eigendecomposition, also with fewer vectors than dimensions."""
    vectors, labels = labelled(rows, width)
    centred = vectors - vectors.mean(axis=0)
    values, basis = np.linalg.eigh(centred.T @ centred / rows)
    used = values > values.max() * 1e-10
    whiten = (basis[:, used] / np.sqrt(values[used])) @ basis[:, used].T
    towards = whiten @ (centred.T @ (labels - labels.mean()) / rows)
    projection = np.outer(towards, towards) / (towards @ towards)
    expected = vectors - centred @ (np.linalg.pinv(whiten, rcond=1e-9) @ projection @ whiten).T
    erased = Leace.fit(vectors, labels).apply(vectors)
    np.testing.assert_allclose(erased, expected, atol=1e-6)
    means = [erased[labels == label].mean(axis=0) for label in (0, 1)]
    np.testing.assert_allclose(means[0], means[1], atol=1e-9)


def test_equal_classes_lose_nothing() -> None:
    vectors = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(Leace.fit(vectors, np.array([0, 0, 1, 1])).apply(vectors), vectors)
