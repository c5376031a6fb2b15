"""What a protocol fits a probe on, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from poolbench.steps.prober import TaskParams
from poolbench_prober.probing.models import macro_f1, weighted_pearson


class Problem(NamedTuple):
    """Labels, or control labels, of one seed's split."""

    vectors_nD: np.ndarray
    values: np.ndarray  # class numbers, or real values [n]
    rows: Mapping[str, np.ndarray]  # of train, dev and test
    num_classes: int  # 0 in a regression
    params: TaskParams
    seed: int

    @property
    def is_regression(self) -> bool:
        """Return whether real values are predicted."""
        return not self.num_classes


class Fitted(NamedTuple):
    """A probe: what it predicts for every instance, and how it was fitted."""

    predicted: np.ndarray  # [n]
    details: dict[str, Any]


def score(regression: bool, truth: np.ndarray, predicted: np.ndarray, weights_Rm: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation or macro-F1 under each set of weights [R]."""
    return (weighted_pearson if regression else macro_f1)(truth, predicted, weights_Rm)
