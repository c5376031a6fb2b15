"""Check the input of a statistic, with a typed error."""

from collections.abc import Sequence

import numpy as np

from poolbench.errors import CellError
from poolbench.statuses import Status


class StatisticError(CellError, ValueError):
    """A statistic cannot be computed from its input; carries the status of the null row."""


def finite_values(values: np.ndarray, what: str, *, minimum: int = 1, allow_infinite: bool = False) -> np.ndarray:
    """Return `values` as float64 [n].

    Raises:
        StatisticError: `failed` if the values are not one-dimensional, `too_few` for fewer than `minimum` values, or
            `non_finite` if a value is NaN or, unless allowed, infinite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise StatisticError(Status.FAILED, f"{what}: need one row of values, got an array of shape {array.shape}")
    if array.size < minimum:
        raise StatisticError(Status.TOO_FEW, f"{what}: got {array.size}, need at least {minimum}")
    wrong = np.isnan(array) if allow_infinite else ~np.isfinite(array)
    if wrong.any():
        kind = "NaN" if allow_infinite else "NaN or infinite"
        raise StatisticError(Status.NON_FINITE, f"{what}: {int(wrong.sum())} of {array.size} are {kind}")
    return array


def complete_blocks(scores_NK: np.ndarray, *, min_treatments: int = 3) -> np.ndarray:
    """Return `scores_NK` [N, K] as float64.

    Raise StatisticError `non_finite` if a score is NaN, `too_few` if there are too few blocks or treatments.
    """
    scores = np.asarray(scores_NK, dtype=np.float64)
    if scores.ndim != 2:
        raise StatisticError(
            Status.FAILED, f"scores must be blocks by treatments, got an array of shape {scores.shape}"
        )
    num_blocks, num_treatments = scores.shape
    if num_blocks < 2 or num_treatments < min_treatments:
        needed = f"need 2 blocks and {min_treatments} treatments"
        raise StatisticError(Status.TOO_FEW, f"{needed}, got {num_blocks} and {num_treatments}")
    if np.isnan(scores).any():
        raise StatisticError(Status.NON_FINITE, "a block lacks a treatment; rank complete blocks only")
    return scores


def unique_positions(ids: Sequence[object], what: str) -> dict[object, int]:
    """Return the position by id. Raise StatisticError `failed` if an id is repeated."""
    positions = {name: place for place, name in enumerate(ids)}
    if len(positions) < len(ids):
        twice = sorted({str(name) for place, name in enumerate(ids) if positions[name] != place})
        raise StatisticError(Status.FAILED, f"{what}: duplicated ids {', '.join(twice[:5])}")
    return positions
