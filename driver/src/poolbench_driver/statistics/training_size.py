"""How many training passages make the comparison of two probes reproducible."""

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status
from poolbench_driver.statistics.mcnemar import SUFFICIENT

SizeProtocol = Literal["published", "corrected"]
#: What an effect is a difference of: accuracies, selectivities, or code lengths as shares of the uniform code's.
Criterion = Literal["accuracy", "control", "code-length"]

#: Probability that the empirical risk of some hypothesis is off by more than it may be.
_CONFIDENCE = 1e-8
#: Bits of a stored weight.
_BITS = 32
#: Half-effects below this give no size.
_SMALLEST_HALF_EFFECT = 1e-5
#: Of each criterion, the risks that a configuration is judged by, and the largest loss of an example.
_RISKS: dict[str, tuple[int, int]] = {"accuracy": (1, 1), "control": (2, 1), "code-length": (1, 2)}


class TrainingSize(NamedTuple):
    """A recommendation, or null with a status."""

    num_train: int | None  # training passages; None unless the status is ok
    num_total: int | None  # passages of the training, development and test shares together
    status: Status = Status.OK  # `ok`, `no_effect`, or `collapsed` (the pilot cannot distinguish the two)
    reason: str = ""  # why there is no size


def num_parameters(width: int, hidden: int | None = None, num_outputs: int = 1) -> int:
    """Return the weights and intercepts of a probe.

    With d the width, h hidden units and k outputs, a linear probe has k (d + 1), and one with a hidden layer has
    h (d + 1) + k (h + 1).

    Args:
        width: Width of the vectors.
        hidden: Units of the hidden layer; None for a linear probe.
        num_outputs: 1 for two classes; for more classes their number.

    Raises:
        ValueError: A number is below 1.
    """
    for name, number in (("width", width), ("hidden", hidden), ("num_outputs", num_outputs)):
        if number is not None and not 1 <= number < math.inf:
            raise ValueError(f"{name} must be at least 1, got {number}")
    return num_outputs * (width + 1) if hidden is None else hidden * (width + 1) + num_outputs * (hidden + 1)


def required_training_size(
    effect: float,
    width: int,
    protocol: str = "corrected",
    *,
    hidden: int | None = None,
    num_outputs: int = 1,
    criterion: str = "accuracy",
) -> int | None:
    """Return the number of training passages after which two probes are ranked correctly, or None without an effect.

    Probes are ranked correctly once the criterion of each is known to half of the effect. The bound is uniform over the
    hypotheses F. By Hoeffding's inequality for losses in [-B, B], and a union over F and over the m risks of a
    configuration, N passages give every risk to e = |effect| / (2 m) with probability 1 - 1e-8:

        N = floor(2 B^2 ln(2 m |F| / 1e-8) / e^2)

    With P parameters of 32 bits,

    - `published`: |F| = P 2^32, which counts the values of one weight times the number of weights. P is that of two
      classes whatever the number of classes: the paper takes (d + 1) 2^32 for six classes too;
    - `corrected`: |F| = 2^(32 P), all settings of the weights.

    The criteria:

    - `accuracy`: m = 1, B = 1.
    - `control`: the effect is a difference of selectivities, each the difference of two accuracies. Each of these is
      known to half of what the selectivity may be off by: m = 2, B = 1.
    - `code-length`: the effect is a difference of code lengths of a label, as shares of log2 K, the uniform code of K
      classes. A code length is a loss without bound, so the code is a mixture: (p + 1 / K) / 2 in place of p. It costs
      at most 1 bit more than the uniform code: 1 + log2 K, at most twice log2 K. So m = 1, B = 2. It holds for one
      probe; the probes of the blocks of an online code have smaller training sets.

    Args:
        effect: Difference of two configurations, from -1 to 1.
        width: Width d of the probe's vectors; of two configurations the larger.
        protocol: `published` or `corrected`.
        hidden: Units of the hidden layer of the probe, of two configurations the larger; None for linear probes.
        num_outputs: As in `num_parameters`.
        criterion: `accuracy`, `control` or `code-length`.

    Raises:
        ValueError: An argument is out of range.

    Reference: Zhu et al. (2022), "On the data requirements of probing": |F| of `published` with criterion `accuracy`,
    and the parameters of a probe with 20 hidden units (footnote 6). The bounds of the other criteria are derived here;
    those of section 3 of the paper may differ.
    """
    for name, value, allowed in (("protocol", protocol, SizeProtocol), ("criterion", criterion, Criterion)):
        if value not in get_args(allowed):
            raise ValueError(f"{name} is {value!r}; allowed: {', '.join(get_args(allowed))}")
    if not abs(effect) <= 1:
        raise ValueError(f"effect is a difference from -1 to 1, got {effect}")
    weights = num_parameters(width, hidden, 1 if protocol == "published" else num_outputs)
    half = abs(effect) / 2
    if half < _SMALLEST_HALF_EFFECT:
        return None
    num_risks, largest_loss = _RISKS[criterion]
    log_hypotheses = _published_hypotheses(weights) if protocol == "published" else _BITS * weights * math.log(2)
    numerator = math.log(2 * num_risks) + log_hypotheses - math.log(_CONFIDENCE)
    return math.floor(2 * largest_loss**2 * numerator / (half / num_risks) ** 2)


def _published_hypotheses(num_weights: int) -> float:
    """Return ln |F| as published: the values of one weight times the number of weights."""
    return math.log(num_weights) + _BITS * math.log(2)


def accuracy_bound(num_train: float, width: int, hidden: int | None = None) -> float:
    """Return by how much the accuracy of any probe can differ from its mean after `num_train` examples, as published.

    Reference: Zhu et al. (2022), section 4.2: sqrt(2 ln(2 |F| / 1e-8) / N) for losses from -1 to 1, and half of it for
    accuracies.
    """
    hypotheses = _published_hypotheses(num_parameters(width, hidden))
    return math.sqrt(2 * (math.log(2) + hypotheses - math.log(_CONFIDENCE)) / num_train) / 2


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
    hidden: int | None = None,
    criterion: str = "accuracy",
    split: tuple[float, ...] = (4, 1, 1),
    interval: tuple[float, float] | None = None,
    power: float | None = None,
) -> TrainingSize:
    """Return the size for an effect, unless the pilot cannot distinguish the two configurations.

    Args:
        effect: Difference of means.
        width: Width of the vectors; of two configurations the larger.
        protocol: `published` or `corrected`.
        hidden: As in `required_training_size`, which gives the number of training passages.
        criterion: As in `required_training_size`.
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
        num_train = required_training_size(effect, width, protocol, hidden=hidden, criterion=criterion)
        total = None if num_train is None else total_size(num_train, split)
    except ValueError as error:
        raise StatisticError(Status.FAILED, str(error)) from None
    if interval is not None and not np.isfinite(interval).all():
        raise StatisticError(Status.NON_FINITE, f"the interval of the effect is {interval}")
    if interval is not None and power is not None and interval[0] <= 0 <= interval[1] and power < SUFFICIENT:
        reason = f"the interval [{interval[0]:.4f}, {interval[1]:.4f}] includes 0 and the power is {power:.2f}"
        return TrainingSize(None, None, Status.COLLAPSED, reason)
    if num_train is None:
        return TrainingSize(None, None, Status.NO_EFFECT, f"an effect of {effect:g} is too small: no size resolves it")
    return TrainingSize(num_train, total)
