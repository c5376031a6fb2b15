"""What divides data keeps groups whole, and prober and audit share their folds."""

from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc
import pytest

from poolbench.concepts import CONCEPTS
from poolbench.statistics.bootstrap import group_weights
from poolbench.statistics.folds import drawn_splits, grouped_folds
from poolbench.steps.prober import ProbeParams
from poolbench_corpora.audit import audit
from poolbench_corpora.audit.training import TEXT_FEATURES
from poolbench_corpora.planted import build_planted
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing.compression import dealt_folds

Grouped = Callable[[np.ndarray, np.ndarray], np.ndarray]
DIVISIONS: dict[str, Grouped] = {
    "folds": lambda groups, codes: grouped_folds(groups, codes, 5, 0),
    "splits": lambda groups, codes: drawn_splits(groups, 0),
    "inner folds": lambda groups, codes: np.asarray(dealt_folds(codes, groups, 0)),
    "resamples": lambda groups, codes: group_weights(groups, 20, 0).T,
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_what_divides_groups_keeps_them_whole(name: str) -> None:
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 6, 40)))
    divided = DIVISIONS[name](groups, rng.integers(0, 2, len(groups)))
    assert len(np.unique(divided, axis=0)) > 1
    for group in range(40):
        assert len(np.unique(divided[groups == group], axis=0)) == 1


@pytest.mark.parametrize(("concept", "seed"), [("contrast", 0), ("imdb_sentiment", 3)])
def test_d1_of_a_surface_feature_is_the_figure_of_the_audit(concept: str, seed: int) -> None:
    passages = build_planted(concept, seed=0, num_train=160, num_test=0, num_scorer=0)
    found = audit(CONCEPTS.get(concept), passages, seed=seed, num_bootstrap=100)
    train = Passages.from_table(passages.filter(pc.equal(passages["split"], "train")))
    params = ProbeParams(seed=seed, num_bootstrap=100, num_permutations=1, sensitivity_c=())
    design = Design.build(train, None, params)
    np.testing.assert_array_equal(found.training.folds, design.folds)
    np.testing.assert_array_equal(found.training.groups, train.groups)
    for figure in found.figures:
        if figure.name in TEXT_FEATURES:
            vectors = PooledVectors.from_matrix(TEXT_FEATURES[figure.name](train.texts))
            (d1,) = [m for m in probe_cell(design, vectors, None, params).measures if m.metric == "d1.auroc"]
            assert figure.auroc == pytest.approx(d1.value, abs=1e-3)
            assert figure.interval == pytest.approx((d1.ci_low, d1.ci_high), abs=3e-3)
