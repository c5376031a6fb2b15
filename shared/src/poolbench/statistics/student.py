"""Student's interval of a mean, for a handful of seeds. A bootstrap would be far too narrow there."""

import math

import numpy as np
from scipy import stats

from poolbench.statistics.inputs import finite_values


def t_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean of `values` [n], taken as normal with unknown variance.

    Raises:
        StatisticError: `too_few` below 2 values, `non_finite` if one is NaN or infinite.

    Reference: Student (1908), "The probable error of a mean".
    """
    known = finite_values(values, "values", minimum=2)
    reach = stats.t.ppf((1 + level) / 2, known.size - 1) * known.std(ddof=1) / math.sqrt(known.size)
    return float(known.mean() - reach), float(known.mean() + reach)
