"""A reading: which items it measures, and what it reads of each from the vectors of any state of the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.inputs.vectors import PooledVectors

#: Share below which a difference is rounding: vectors are stored in float32.
_ROUNDING = 1e-6
#: Names of the two states that are compared.
BEFORE, AFTER = "before", "after"


class Plane(NamedTuple):
    """Coordinates of items in the plane."""

    items: np.ndarray  # their item numbers [m]
    before_m2: np.ndarray  # coordinates before
    after_m2: np.ndarray  # coordinates after
    share: float  # share of the variance of all vectors that the plane shows; NaN if they are all equal


def common_plane(items: np.ndarray, before_mW: np.ndarray, after_mW: np.ndarray, towards_m: np.ndarray) -> Plane:
    """Return the plane of the first two principal components of both states stacked.

    Each axis points to where the weights `towards_m` have a positive sum, or else to its largest coordinate. The plane
    is computed by one thread, because the bits of a decomposition depend on the number of threads.

    Args:
        items: Item numbers [m].
        before_mW: Vectors before.
        after_mW: Vectors after.
        towards_m: Weight of each item in the signs of the axes.
    """
    stacked = np.concatenate([before_mW, after_mW])
    centred = stacked - stacked.mean(axis=0)
    total = float(np.square(centred).sum())
    places, sizes = _two_components(centred)
    weighted = (np.tile(towards_m, 2)[:, None] * places).sum(axis=0)
    largest = places[np.abs(places).argmax(axis=0), np.arange(2)]
    clear = np.abs(weighted) > _ROUNDING * np.abs(largest)
    places *= np.where(np.where(clear, weighted, largest) < 0, -1.0, 1.0)
    differ = total > _ROUNDING**2 * float(np.square(stacked).sum())
    share = min(1.0, float(sizes.sum()) / total) if differ else float("nan")
    return Plane(items, places[: len(items)], places[len(items) :], share)


def _two_components(centred_rW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates [r, 2] along the first two principal components, and sums of their squares [2].

    They come from the inner products of the rows or of the columns, whichever are fewer: 2 of thousands are needed.
    """
    num_rows, width = centred_rW.shape
    places, sizes = np.zeros((num_rows, 2)), np.zeros(2)
    count = min(2, num_rows, width)
    with threadpool_limits(1):
        by_rows = num_rows <= width
        gram = centred_rW @ centred_rW.T if by_rows else centred_rW.T @ centred_rW
        values, vectors = eigh(gram, subset_by_index=[len(gram) - count, len(gram) - 1])
        sizes[:count] = np.maximum(values[::-1], 0.0)
        ordered = vectors[:, ::-1]
        places[:, :count] = ordered * np.sqrt(sizes[:count]) if by_rows else centred_rW @ ordered
    return places, sizes


@dataclass(frozen=True)
class Reading:
    """One reading of two states, from which further states can be read in the same way."""

    names: tuple[str, ...]  # word, or passage id, of each item [I]
    groups: tuple[str | None, ...]  # `domain`, `positive` or `negative` [I]; None for passages
    errors: tuple[CellError | None, ...]  # why an item has no value in one of the two states [I]
    measured: np.ndarray  # items that the measures are about [n]
    units: np.ndarray  # bootstrap unit of each of them [n]
    values: Callable[[PooledVectors], np.ndarray]  # their values in a state [n]; raises CellError if it lacks one
    ci_method: str  # how intervals are computed
    others: np.ndarray = field(default_factory=lambda: np.array([], dtype=int))  # liked and disliked items [E]
    #: Their cosines with the measured items in a state [n, E]; None for passages.
    cosines: Callable[[PooledVectors], np.ndarray] | None = None
    plane: Plane | None = None  # places of items in both states; None for passages, or if the reading has an error
    error: CellError | None = None  # why nothing is measured


def missing_vector(vectors: PooledVectors, rows: np.ndarray) -> CellError | None:
    """Return the error of the first row without a vector, or None if all rows have one."""
    failed = rows[~vectors.usable[rows]]
    if not len(failed):
        return None
    return vectors.errors[failed[0]] or CellError(Status.NON_FINITE, "the text has no finite vector")


def in_state(name: str, error: CellError | None) -> CellError | None:
    """Return an error with the name of its state before the message."""
    return None if error is None else CellError(error.status, f"{name}: {error}")


def first_errors(before: Sequence[CellError | None], after: Sequence[CellError | None]) -> tuple[CellError | None, ...]:
    """Return for each item its error before, or else its error after, or else None."""
    pairs = zip(before, after, strict=True)
    return tuple(in_state(BEFORE, first) or in_state(AFTER, second) for first, second in pairs)
