"""Why folds are grouped: pairs on two sides of a split drag the AUROC below chance."""

import numpy as np

from poolbench.statistics.auroc import auroc
from poolbench.statistics.folds import grouped_folds
from poolbench_prober.solver.fits import fit_probes


def cross_validated(vectors, labels, folds):
    scores = np.empty(len(labels))
    for fold in np.unique(folds):
        held = folds == fold
        fit = fit_probes(vectors[~held], labels[~held, None], np.ones(1))
        scores[held] = fit.scores(vectors[held])[:, 0]
    return auroc(labels, scores, folds)


def test_ungrouped_folds_fall_below_chance_without_signal_and_grouped_do_not():
    ungrouped, grouped = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        pairs = np.repeat(np.arange(60), 2)
        labels = np.tile([1, 0], 60)
        vectors = rng.normal(size=(60, 128))[pairs] + 0.1 * rng.normal(size=(120, 128))
        ungrouped.append(cross_validated(vectors, labels, grouped_folds(np.arange(120), labels, 5, seed)))
        grouped.append(cross_validated(vectors, labels, grouped_folds(pairs, labels, 5, seed)))
    assert np.mean(ungrouped) < 0.4
    assert abs(np.mean(grouped) - 0.5) < 0.03
