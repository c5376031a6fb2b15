"""The published protocol against its own few lines, written again with numpy and scikit-learn."""

import numpy as np
import pytest
from services.prober.tests.conftest import bits_under_threads, passages_table, planted_vectors
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import normalize

from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.published import projections, stratified_folds, unit_rows
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.tables import directions_table, measures_table

PUBLISHED = ProbeParams(protocol="published", num_bootstrap=200)


def reference(vectors, labels, num_bootstrap):
    unit, scores = normalize(vectors), np.zeros(len(labels))
    for train, held in StratifiedKFold(5, shuffle=True, random_state=42).split(unit, labels):
        x, y = unit[train], labels[train]
        direction = x[y == 1].mean(0) - x[y == 0].mean(0)
        scores[held] = unit[held] @ (direction / np.linalg.norm(direction))
    rng, samples = np.random.default_rng(42), []
    for draw in rng.integers(0, len(labels), size=(num_bootstrap, len(labels))):
        if len(set(labels[draw])) == 2:
            samples.append(roc_auc_score(labels[draw], scores[draw]))
    return roc_auc_score(labels, scores), *np.percentile(samples, [2.5, 97.5]), scores


def published(passages, vectors, params=PUBLISHED):
    return probe_cell(Design.build(passages, None, params), PooledVectors.from_matrix(vectors), None, params)


@pytest.mark.parametrize(("shift", "width"), [(0.0, 24), (1.0, 24), (1.5, 300)])
def test_an_independent_implementation_gives_the_identical_figures(shift, width):
    passages = Passages.from_table(passages_table(paired=False))
    vectors = planted_vectors(passages, shift, width=width)
    value, low, high, scores = reference(vectors, passages.labels, 200)
    result = published(passages, vectors)
    (measure,) = result.measures
    assert measure.value == pytest.approx(value, abs=1e-12)
    assert (measure.ci_low, measure.ci_high) == pytest.approx((low, high), abs=1e-12)
    np.testing.assert_allclose([row["score"] for row in result.scores], scores, atol=1e-12)
    assert (measure.metric, measure.seed, measure.n) == ("d1.auroc", 42, 120)


def test_seeds_and_norms_do_not_matter(train):
    first = published(train, planted_vectors(train, 1.0))
    other = published(train, planted_vectors(train, 1.0), PUBLISHED.model_copy(update={"seed": 9, "folds": 3}))
    assert measures_table(first.measures).equals(measures_table(other.measures))
    assert directions_table(first.directions, 24).equals(directions_table(other.directions, 24))
    vectors = planted_vectors(train, 1.0)
    scaled = vectors * np.exp(np.random.default_rng(0).normal(size=(120, 1)))
    assert published(train, scaled).measures[0].value == pytest.approx(published(train, vectors).measures[0].value)


def test_pair_leakage_drags_matched_concepts_below_chance_and_the_corrected_protocol_does_not():
    """No signal at all: published .40-.43 for the matched concepts of the reference; grouped folds give .5."""
    passages = Passages.from_table(passages_table(70))
    corrected = ProbeParams(num_bootstrap=0, num_permutations=1, num_control_words=1, sensitivity_c=())
    theirs, ours = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        pairs = rng.normal(size=(70, 64))[np.arange(140) // 2]
        vectors = pairs + 0.3 * rng.normal(size=pairs.shape)
        theirs.append(published(passages, vectors, PUBLISHED.model_copy(update={"num_bootstrap": 0})).measures[0].value)
        ours.append(published(passages, vectors, corrected).measures[0].value)
    assert np.mean(theirs) < 0.43
    assert abs(np.mean(ours) - 0.5) < 0.04


def test_what_cannot_be_probed_is_null_and_constant_vectors_are_chance(train):
    vectors = planted_vectors(train, 1.0)
    vectors[:20] = np.nan
    assert published(train, vectors).measures[0].status == "non_finite"
    one = train.take(np.flatnonzero(train.labels == 1))
    assert published(one, planted_vectors(one, 1.0)).measures[0].status == "one_class"
    few = Passages.from_table(passages_table(4))
    assert published(few, planted_vectors(few, 1.0)).measures[0].status == "too_few"
    (measure,) = published(train, np.ones((120, 8))).measures
    assert measure.value == 0.5
    assert measure.reason.startswith("collapsed")
    np.testing.assert_array_equal(unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0.0, 0.0]])


def test_a_score_does_not_depend_on_the_rows_beside_it(train):
    """A BLAS rounds a row by its place in the block; 4,096 columns show it."""
    rng = np.random.default_rng(0)
    unit, labels = rng.normal(size=(101, 4096)), np.arange(101) % 2
    folds = np.arange(101) % 5
    scores = projections(unit, labels, folds)
    held = np.flatnonzero(folds == 0)
    direction = unit[(folds != 0) & (labels == 1)].mean(axis=0) - unit[(folds != 0) & (labels == 0)].mean(axis=0)
    direction /= np.sqrt(np.square(direction).sum())
    for row in held:
        assert scores[row] == (unit[[row]] * direction).sum(axis=1)[0]


def test_the_same_bits_under_any_number_of_threads():
    vectors, labels = np.random.default_rng(0).normal(size=(701, 4096)), np.arange(701) % 3 // 2
    folds = stratified_folds(labels)
    assert len(bits_under_threads(lambda: projections(unit_rows(vectors), labels, folds))) == 1


def test_the_same_bits_whatever_else_is_in_the_task(train):
    """Strategies in another order, more of them, or a cell alone."""
    cells = {
        name: planted_vectors(train, shift, seed=seed) for seed, (name, shift) in enumerate((("a", 0.5), ("b", 1.0)))
    }
    design = Design.build(train, None, PUBLISHED)
    told = [
        {
            n: measures_table(probe_cell(design, PooledVectors.from_matrix(cells[n]), None, PUBLISHED).measures)
            for n in order
        }
        for order in (("a", "b"), ("b", "a"), ("a",), ("b",))
    ]
    for found in told:
        for name, table in found.items():
            assert table.equals(told[0][name])
