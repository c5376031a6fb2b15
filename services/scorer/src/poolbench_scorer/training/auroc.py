"""AUROC with a bootstrap over groups, as every part of the scorer's report uses it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from poolbench.statistics import auroc, auroc_resamples, group_weights, percentile_interval

CI_METHOD = "bootstrap over groups, percentile"


class Auroc(NamedTuple):
    """An AUROC with its interval; ``interval`` is None where too few resamples hold both classes."""

    value: float
    interval: tuple[float, float] | None
    num_groups: int


def grouped_auroc(
    scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, *, num_bootstrap: int, seed: int
) -> Auroc:
    """AUROC of ``scores`` [n] with a percentile interval over ``groups`` [n]; copies of a group are not compared."""
    samples = auroc_resamples(labels, scores, group_weights(groups, num_bootstrap, seed), groups=groups)
    return Auroc(auroc(labels, scores), percentile_interval(samples), int(np.unique(groups).size))
