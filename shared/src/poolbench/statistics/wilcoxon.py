"""Wilcoxon's signed-rank test of paired differences, with an effect size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats


class WilcoxonResult(NamedTuple):
    """Two-sided p-value, matched-pairs rank-biserial correlation, and number of non-zero differences."""

    p_value: float
    effect: float
    num_nonzero: int


def wilcoxon_test(differences: np.ndarray) -> WilcoxonResult:
    """Two-sided signed-rank test that ``differences`` [n] are symmetric about 0; zeros are dropped.

    The p-value is exact up to 50 differences without ties, else by the normal approximation with correction
    for ties. The effect size is (W+ - W-) / (W+ + W-), from -1 to 1.

    Reference: Wilcoxon (1945); Kerby (2014), "The simple difference formula", for the effect size.
    """
    nonzero = differences[differences != 0]
    if nonzero.size == 0:
        return WilcoxonResult(1.0, 0.0, 0)
    ranks = stats.rankdata(np.abs(nonzero))
    effect = float((ranks * np.sign(nonzero)).sum() / ranks.sum())
    tied = np.unique(np.abs(nonzero)).size < nonzero.size
    method = "exact" if nonzero.size <= 50 and not tied else "approx"
    result = stats.wilcoxon(nonzero, method=method, correction=False)
    return WilcoxonResult(float(result.pvalue), effect, int(nonzero.size))
