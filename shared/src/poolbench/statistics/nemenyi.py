"""Critical difference of mean ranks."""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import stats


@lru_cache(maxsize=256)
def nemenyi_quantile(num_treatments: int, alpha: float = 0.05) -> float:
    """Upper quantile of the studentized range with infinite degrees of freedom, over the root of 2.

    Reference: Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", table 5.
    """
    return float(stats.studentized_range.isf(alpha, num_treatments, math.inf)) / math.sqrt(2)


def nemenyi_critical_difference(num_treatments: int, num_blocks: int, alpha: float = 0.05) -> float:
    """Smallest difference of two mean ranks that is significant at ``alpha`` over all pairs.

    Reference: Demsar (2006), eq. before table 5: q sqrt(k (k + 1) / (6 N)).

    Raises:
        ValueError: If there are fewer than 2 treatments or no blocks.
    """
    if num_treatments < 2 or num_blocks < 1:
        raise ValueError(f"need at least 2 treatments and 1 block, got {num_treatments} and {num_blocks}")
    spread = num_treatments * (num_treatments + 1) / (6 * num_blocks)
    return nemenyi_quantile(num_treatments, alpha) * math.sqrt(spread)
