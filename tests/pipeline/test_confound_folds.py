"""The prober and the audit draw the same folds, and their probes of the same features agree."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from poolbench.concepts import CONCEPTS
from poolbench.steps.prober import ProbeParams
from poolbench_corpora.audit import audit
from poolbench_corpora.audit.training import TEXT_FEATURES
from poolbench_corpora.planted import build_planted
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors


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
