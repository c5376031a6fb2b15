"""The table of single words or passages: values before and after, and places in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import WORD_SHIFTS, table_from_rows
from poolbench_prober.valence.figures import ROUNDING
from poolbench_prober.valence.reading import AFTER, BEFORE, Reading

_NUMBERS = tuple(field.name for field in WORD_SHIFTS if field.type == pa.float64())


def shifts_table(reading: Reading, before_n: np.ndarray, after_n: np.ndarray) -> pa.Table:
    """Return WORD_SHIFTS, one row per item of the reading, from the values of the measured items [n]."""
    columns = {name: np.full(len(reading.names), np.nan) for name in _NUMBERS}
    change_n = after_n - before_n
    values = {BEFORE: before_n, AFTER: after_n, "change": change_n, "standout": standouts(change_n)}
    for name, values_n in values.items():
        columns[name][reading.measured] = values_n
    if reading.plane is not None:
        for state, places_m2 in ((BEFORE, reading.plane.before_m2), (AFTER, reading.plane.after_m2)):
            for axis, places_m in zip("xy", places_m2.T, strict=True):
                columns[f"{axis}_{state}"][reading.plane.items] = places_m
    return table_from_rows([_row(reading, item, columns) for item in range(len(reading.names))], WORD_SHIFTS)


def _row(reading: Reading, item: int, columns: dict[str, np.ndarray]) -> dict[str, Any]:
    numbers = {name: float(values[item]) if np.isfinite(values[item]) else None for name, values in columns.items()}
    # Liked and disliked words have no value, so that what rules out all values is not their error.
    error = reading.errors[item] or (reading.error if reading.groups[item] in (None, "domain") else None)
    why = {} if error is None else {"status": str(error.status), "reason": str(error)}
    return {"word": reading.names[item], "group": reading.groups[item], **numbers, **why}


def standouts(changes_n: np.ndarray) -> np.ndarray:
    """Return how far each change is from the median, in 1.4826 median absolute deviations; NaN if these are 0.

    The factor makes the unit the standard deviation of a normal distribution.
    """
    if not len(changes_n):
        return changes_n
    median = np.median(changes_n)
    unit = 1.4826 * np.median(np.abs(changes_n - median))
    if not unit > ROUNDING * (1 + abs(median)):
        return np.full(len(changes_n), np.nan)
    return np.asarray((changes_n - median) / unit)
