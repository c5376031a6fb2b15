"""Paired measurements: alignment by id, order within pairs, and a permutation test."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from poolbench.cancellation import check_cancelled
from poolbench.statistics.inputs import StatisticError, finite_values, unique_positions
from poolbench.statuses import Status


def within_pair_accuracy(differences: np.ndarray, weights_RP: np.ndarray | None = None) -> np.ndarray:
    """Return the share of pairs whose positive scores above its negative, [R]. Ties count one half.

    `differences` are the scores of positives minus negatives [P]. The weights may be bootstrap counts. Without weights,
    R is 1.
    """
    ordered = (np.sign(differences) + 1) / 2
    weights = np.ones((1, len(ordered))) if weights_RP is None else weights_RP
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ ordered) / weights.sum(axis=1)


def paired_differences(
    first_ids: Sequence[object], first: np.ndarray, second_ids: Sequence[object], second: np.ndarray
) -> np.ndarray:
    """Return `second` minus `first` of equal ids [n], in the order of `first_ids`.

    Raise StatisticError `failed` if an id is repeated on one side, or has no partner (the remaining pairs would answer
    another question). Raise StatisticError `non_finite` if a value is NaN or infinite.
    """
    if (len(first_ids), len(second_ids)) != (len(first), len(second)):
        raise StatisticError(Status.FAILED, "as many ids as values are needed on both sides")
    unique_positions(first_ids, "first side")
    places = unique_positions(second_ids, "second side")
    lonely = set(first_ids).symmetric_difference(second_ids)
    if lonely:
        examples = ", ".join(sorted(map(str, lonely))[:5])
        raise StatisticError(Status.FAILED, f"{len(lonely)} unpaired ids ({examples}): both sides need the same ones")
    sides = finite_values(second, "second side", minimum=0), finite_values(first, "first side", minimum=0)
    return sides[0][[places[name] for name in first_ids]] - sides[1]


#: Up to this many units all sign patterns are counted (2^20: a million sums); beyond, some are drawn.
MAX_EXACT = 20

#: Sums this close, as a share of the sum of magnitudes, are equal: the same numbers added in another order.
_ROUNDING = 1e-12


class PermutationResult(NamedTuple):
    """Two-sided p-value, mean difference, and number of drawn sign patterns (0 if all patterns were counted)."""

    p_value: float
    mean_difference: float
    num_drawn: int


def paired_permutation_test(differences: np.ndarray, *, num_resamples: int = 9999, seed: int = 0) -> PermutationResult:
    """Test two-sided, by their mean, that `differences` [n] are exchangeable with their negatives.

    If at most `MAX_EXACT` differences are not zero, all sign patterns are counted. Otherwise, `num_resamples` patterns
    are drawn. The observed pattern counts among them, so that p is never 0 and the test keeps its level.

    Args:
        differences: Second minus first of each pair.
        num_resamples: Number of drawn sign patterns.
        seed: Seed of the drawn patterns.

    Raises:
        StatisticError: `too_few` if there is no pair, or `non_finite` if a difference is NaN or infinite.

    Reference: Fisher (1935). For the + 1: Phipson & Smyth (2010), "Permutation p-values should never be zero".
    """
    values = finite_values(differences, "differences")
    moving = values[values != 0]
    observed = abs(float(moving.sum())) - _ROUNDING * float(np.abs(moving).sum())
    mean = float(values.mean())
    if moving.size <= MAX_EXACT:
        return PermutationResult(float((np.abs(_all_sums(moving)) >= observed).mean()), mean, 0)
    reached = _num_reached(moving, observed, num_resamples, np.random.default_rng(seed))
    return PermutationResult((reached + 1) / (num_resamples + 1), mean, num_resamples)


def _all_sums(values: np.ndarray) -> np.ndarray:
    """Return the sum under each sign pattern [2^(n - 1)]; the first sign is fixed: |sum| ignores a common flip."""
    sums = values[:1] if values.size else np.zeros(1)
    for value in values[1:]:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def _num_reached(values: np.ndarray, observed: float, num_resamples: int, rng: np.random.Generator) -> int:
    """Count the drawn sign patterns whose sum is as far from 0 as `observed`, in blocks that bound the memory."""
    block = max(1, 4_000_000 // values.size)
    reached = 0
    for start in range(0, num_resamples, block):
        check_cancelled()
        size = (min(block, num_resamples - start), values.size)
        signs = rng.integers(0, 2, size=size, dtype=np.int8) * 2.0 - 1.0
        reached += int((np.abs(signs @ values) >= observed).sum())
    return reached
