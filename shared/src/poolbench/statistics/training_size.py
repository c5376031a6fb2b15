"""How many training passages make the comparison of two probes reproducible."""

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status

SizeProtocol = Literal["published", "corrected"]

#: Probability that the empirical risk of some hypothesis is off by more than half of the effect.
_CONFIDENCE = 1e-8
#: Bits of a stored weight.
_BITS = 32
#: Half-effects below this give no size.
_SMALLEST_HALF_EFFECT = 1e-5
_SUFFICIENT_POWER = 0.8


class TrainingSize(NamedTuple):
    """A recommendation, or null with a status."""

    num_train: int | None  # training passages; None unless the status is ok
    num_total: int | None  # passages of the training, development and test shares together
    status: Status = Status.OK  # `ok`, `no_effect`, or `collapsed` (the pilot cannot distinguish the two)
    reason: str = ""  # why there is no size


def required_training_size(effect: float, width: int, protocol: str = "corrected") -> int | None:
    """Return the training passages after which the risk of any probe is known to half of the effect; None without an
    effect.

    N = floor(2 ln(2 |F| / 1e-8) / (|effect| / 2)^2), a uniform bound over the hypotheses F, with

    - `published`: |F| = (d + 1) 2^32, which counts the values of one weight times the number of weights;
    - `corrected`: |F| = 2^(32 (d + 1)), all settings of d + 1 weights of 32 bits.

    Args:
        effect: Difference of the mean accuracies of two configurations, from -1 to 1.
        width: Width d of the probe's vectors; of two configurations the larger.
        protocol: `published` or `corrected`.

    Raises:
        ValueError: An argument is out of range.
    """
    if protocol not in get_args(SizeProtocol):
        raise ValueError(f"protocol is {protocol!r}; allowed: {', '.join(get_args(SizeProtocol))}")
    if not abs(effect) <= 1:
        raise ValueError(f"effect is a difference of accuracies from -1 to 1, got {effect}")
    if not 1 <= width < math.inf:
        raise ValueError(f"width must be at least 1, got {width}")
    half = abs(effect) / 2
    if half < _SMALLEST_HALF_EFFECT:
        return None
    weights = width + 1
    log_hypotheses = (
        math.log(weights) + _BITS * math.log(2) if protocol == "published" else _BITS * weights * math.log(2)
    )
    return math.floor(2 * (math.log(2) + log_hypotheses - math.log(_CONFIDENCE)) / half**2)


def total_size(num_train: int, split: tuple[float, ...] = (4, 1, 1)) -> int:
    """Return the passages if `num_train` are the first share of `split`. Raise ValueError for wrong shares."""
    if not split or not all(share > 0 for share in split) or not sum(split) <= 1e6 * split[0] < math.inf:
        raise ValueError(f"split {split} must be positive shares, training first and at least a millionth of all")
    return math.ceil(num_train * sum(split) / split[0])


def recommend_training_size(
    effect: float,
    width: int,
    protocol: str = "corrected",
    *,
    split: tuple[float, ...] = (4, 1, 1),
    interval: tuple[float, float] | None = None,
    power: float | None = None,
) -> TrainingSize:
    """Return the size for an effect, unless the pilot cannot distinguish the two configurations.

    Args:
        effect: Difference of mean accuracies.
        width: Width of the vectors; of two configurations the larger.
        protocol: `published` or `corrected`.
        split: Shares of training, development and test passages.
        interval: Paired interval of the effect over the pilot's folds or seeds.
        power: Power of McNemar's test at the largest number of test passages available.

    Returns:
        Null with `collapsed` if the interval includes 0 and the power is below .8; null with `no_effect` if
        the effect is too small for a bound.

    Raises:
        StatisticError: An argument is out of range.
    """
    try:
        num_train = required_training_size(effect, width, protocol)
        total = None if num_train is None else total_size(num_train, split)
    except ValueError as error:
        raise StatisticError(Status.FAILED, str(error)) from None
    if interval is not None and not np.isfinite(interval).all():
        raise StatisticError(Status.NON_FINITE, f"the interval of the effect is {interval}")
    if interval is not None and power is not None and interval[0] <= 0 <= interval[1] and power < _SUFFICIENT_POWER:
        reason = f"the interval [{interval[0]:.4f}, {interval[1]:.4f}] includes 0 and the power is {power:.2f}"
        return TrainingSize(None, None, Status.COLLAPSED, reason)
    if num_train is None:
        return TrainingSize(None, None, Status.NO_EFFECT, f"an effect of {effect:g} is too small: no size resolves it")
    return TrainingSize(num_train, total)
