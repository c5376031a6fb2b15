"""Align two sets of measurements by id, and measure the order within matched pairs."""

from collections.abc import Sequence

import numpy as np

from poolbench.statistics.inputs import StatisticError, finite_values, unique_positions
from poolbench.statuses import Status


def within_pair_accuracy(differences: np.ndarray, weights_RP: np.ndarray | None = None) -> np.ndarray:
    """Return the share of pairs whose positive scores above its negative, ties one half, [R] (R = 1 without weights).

    Args:
        differences: Score of the positive minus score of the negative [P].
        weights_RP: Weights of the pairs, e.g. bootstrap counts.
    """
    ordered = (np.sign(differences) + 1) / 2
    weights = np.ones((1, len(ordered))) if weights_RP is None else weights_RP
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ ordered) / weights.sum(axis=1)


def paired_differences(
    first_ids: Sequence[object], first: np.ndarray, second_ids: Sequence[object], second: np.ndarray
) -> np.ndarray:
    """Return `second` minus `first` of the same id [n], in the order of `first_ids`.

    Raises:
        StatisticError: `failed` if an id is repeated on one side, or has no partner: the remaining pairs would answer
            another question. `non_finite` if a value is NaN or infinite.
    """
    if (len(first_ids), len(second_ids)) != (len(first), len(second)):
        raise StatisticError(Status.FAILED, "as many ids as values are needed on both sides")
    unique_positions(first_ids, "first side")
    places = unique_positions(second_ids, "second side")
    lonely = set(first_ids).symmetric_difference(second_ids)
    if lonely:
        shown = ", ".join(sorted(map(str, lonely))[:5])
        raise StatisticError(Status.FAILED, f"{len(lonely)} unpaired ids ({shown}): both sides need the same ones")
    sides = finite_values(second, "second side", minimum=0), finite_values(first, "first side", minimum=0)
    return sides[0][[places[name] for name in first_ids]] - sides[1]
