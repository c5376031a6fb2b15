"""A reading: which items it measures, and what it reads of each from the vectors of any state of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.valence.plane import Plane

#: Names of the two states that are compared.
BEFORE, AFTER = "before", "after"


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
    plane: Plane | None = None  # places of items in both states; None for passages, or if the reading has an error
    error: CellError | None = None  # why nothing is measured


def missing_vector(vectors: PooledVectors, rows: np.ndarray) -> CellError | None:
    """Return why one of the rows has no vector; None if all have one."""
    failed = rows[~vectors.usable[rows]]
    if not len(failed):
        return None
    return vectors.errors[failed[0]] or CellError(Status.NON_FINITE, "the text has no finite vector")


def in_state(name: str, error: CellError | None) -> CellError | None:
    """Return the error with the name of the state that has it."""
    return None if error is None else CellError(error.status, f"{name}: {error}")


def first_errors(before: Sequence[CellError | None], after: Sequence[CellError | None]) -> tuple[CellError | None, ...]:
    """Return the error of each item in the first state that has one."""
    pairs = zip(before, after, strict=True)
    return tuple(in_state(BEFORE, first) or in_state(AFTER, second) for first, second in pairs)
