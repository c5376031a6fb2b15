"""Measures of a shift: changes of mean and variance over words, their intervals, and their place among random changes.

Row 0 of the weights is of ones, so that entry 0 of a statistic is its value, and the others are its resamples.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statuses import Status

METRICS = ("shift.valence", "shift.variance", "shift.log_variance")
PLANE_SHARE = "shift.plane_share"
#: Fewest random states behind a rank.
MIN_RANDOM = 5
#: Spread, as a share of 1 plus the mean, below which values differ by rounding alone: vectors are stored in float32.
ROUNDING = 1e-7


def resample_weights(units_n: np.ndarray, num_resamples: int, seed: int) -> np.ndarray:
    """Return weights [1 + R, n]: a row of ones, and R rows of a bootstrap over the units."""
    weights_Rn = group_weights(units_n, num_resamples, seed)
    return np.concatenate([np.ones_like(weights_Rn, shape=(1, len(units_n))), weights_Rn])


def changes(before_n: np.ndarray, after_n: np.ndarray, weights_Rn: np.ndarray) -> dict[str, np.ndarray]:
    """Return the change of mean, variance and log variance under each row of weights, [R] by metric.

    The change of log variance is NaN where a variance is 0.
    """
    (mean_before, before), (mean_after, after) = (_moments(values, weights_Rn) for values in (before_n, after_n))
    both = (before > 0) & (after > 0)
    logs = np.log(np.where(both, after, 1.0)) - np.log(np.where(both, before, 1.0))
    return dict(zip(METRICS, (mean_after - mean_before, after - before, np.where(both, logs, np.nan)), strict=True))


def _moments(values_n: np.ndarray, weights_Rn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted mean and population variance [R]; a variance that is rounding is 0."""
    totals_R = weights_Rn.sum(axis=1, dtype=np.float64)
    means_R = (weights_Rn * values_n).sum(axis=1) / totals_R
    variances_R = (weights_Rn * np.square(values_n - means_R[:, None])).sum(axis=1) / totals_R
    return means_R, np.where(np.sqrt(variances_R) > ROUNDING * (1 + np.abs(means_R)), variances_R, 0.0)


def shift_measures(
    before_n: np.ndarray,
    after_n: np.ndarray,
    random: Mapping[str, np.ndarray | CellError],
    weights_Rn: np.ndarray,
    fields: Mapping[str, Any],
) -> Iterator[Measure]:
    """Yield each change with its interval. If there are random states, also yield the excess and the rank.

    Args:
        before_n: Values of the measured items.
        after_n: Values of the measured items after fine-tuning.
        random: Values of the items after random changes, by state. A state with an error instead is left out.
        weights_Rn: As `resample_weights` returns them.
        fields: Fields that all measures share.
    """
    samples_by_metric = changes(before_n, after_n, weights_Rn)
    of_random = {
        name: changes(before_n, values, weights_Rn) for name, values in random.items() if isinstance(values, np.ndarray)
    }
    for metric in METRICS:
        yield _measure(metric, samples_by_metric[metric], fields)
        if random:
            samples_KR = {name: samples[metric] for name, samples in of_random.items()}
            yield from _against_random(metric, samples_by_metric[metric], samples_KR, random, fields)


def blank_measures(error: CellError, with_random: bool, fields: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield the measures of `shift_measures`, all null with the status of `error`."""
    for metric in METRICS:
        yield Measure.failed(metric, error, **fields)
        for name in _random_metrics(metric) if with_random else ():
            yield Measure.failed(name, error, **fields)


def _random_metrics(metric: str) -> tuple[str, str]:
    return f"{metric}.excess_random", f"{metric}.rank_random"


def _against_random(
    metric: str,
    own_R: np.ndarray,
    samples_KR: Mapping[str, np.ndarray],
    random: Mapping[str, np.ndarray | CellError],
    fields: Mapping[str, Any],
) -> Iterator[Measure]:
    excess, rank = _random_metrics(metric)
    drawn = {name: float(samples[0]) for name, samples in samples_KR.items()}
    details = {"random": {name: value if np.isfinite(value) else None for name, value in drawn.items()}}
    left_out = {name: str(error.status) for name, error in random.items() if isinstance(error, CellError)}
    random_fields = {**fields, "details": {**details, "left_out": left_out} if left_out else details}
    ranked = {**random_fields, "n": len(drawn) + 1, "num_groups": None}
    if not drawn:
        reason = "no random state has a vector of every measured item"
        yield Measure.null(excess, Status.TOO_FEW, reason, **random_fields)
    else:
        yield _measure(excess, own_R - np.mean(list(samples_KR.values()), axis=0), random_fields)
    if len(drawn) < MIN_RANDOM:
        reason = f"{len(drawn)} random states; {MIN_RANDOM} are needed"
        yield Measure.null(rank, Status.TOO_FEW, reason, **ranked)
    elif not np.isfinite([own_R[0], *drawn.values()]).all():
        yield Measure.null(rank, Status.COLLAPSED, _CONSTANT, **ranked)
    else:
        yield Measure.of(rank, 1.0 + sum(value >= own_R[0] for value in drawn.values()), **ranked)


_CONSTANT = "the values are all equal in one of the states: their variance is 0 and has no logarithm"


def _measure(metric: str, samples_R: np.ndarray, fields: Mapping[str, Any]) -> Measure:
    if not np.isfinite(samples_R[0]):
        return Measure.null(metric, Status.COLLAPSED, _CONSTANT, **fields)
    return Measure.of(metric, samples_R[0], percentile_interval(samples_R[1:]), **fields)
