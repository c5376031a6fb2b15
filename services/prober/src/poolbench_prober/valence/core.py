"""Preference shift of one fine-tune, by each reading."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.cancellation import check_cancelled
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import WORD_COSINES, WORD_SHIFTS, table_from_rows
from poolbench.errors import CellError, InputError, shown
from poolbench.statuses import Status
from poolbench.steps.prober import ValenceParams
from poolbench_prober import cost
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.valence.along import direction_reading
from poolbench_prober.valence.figures import PLANE_SHARE, ROUNDING, blank_measures, resample_weights, shift_measures
from poolbench_prober.valence.reading import AFTER, BEFORE, Reading
from poolbench_prober.valence.words import Words, word_reading

_NUMBERS = tuple(field.name for field in WORD_SHIFTS if field.type == pa.float64())


def shifts_table(reading: Reading, before_n: np.ndarray, after_n: np.ndarray) -> pa.Table:
    """Build WORD_SHIFTS, with one row per item of the reading, from the values of the measured items [n]."""
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


def cosines_table(reading: Reading, before_nE: np.ndarray, after_nE: np.ndarray) -> pa.Table:
    """Build WORD_COSINES from the cosines of the n measured words with the E liked and disliked words."""
    rows = [
        {
            "word": reading.names[item],
            "other": reading.names[other],
            "group": reading.groups[other],
            "before": float(before_nE[row, column]),
            "after": float(after_nE[row, column]),
        }
        for row, item in enumerate(reading.measured)
        for column, other in enumerate(reading.others)
    ]
    return table_from_rows(rows, WORD_COSINES)


def standouts(changes_n: np.ndarray) -> np.ndarray:
    """Return the distance of each change from the median in units of 1.4826 median absolute deviations.

    For a normal distribution, the unit is the standard deviation. If the unit is 0, the result is NaN.
    """
    if not len(changes_n):
        return changes_n
    median = np.median(changes_n)
    unit = 1.4826 * np.median(np.abs(changes_n - median))
    if not unit > ROUNDING * (1 + abs(median)):
        return np.full(len(changes_n), np.nan)
    return np.asarray((changes_n - median) / unit)


@dataclass(frozen=True)
class Shift:
    """The result of one reading: measures, a WORD_SHIFTS table, and for readings of words a WORD_COSINES table."""

    measures: list[Measure]
    words: pa.Table
    cosines: pa.Table | None = None


def shifts(
    texts: pa.Table,
    vectors: Callable[[str], pa.Table],
    random: Sequence[str],
    readings: Iterable[str],
    directions: pa.Table | None,
    params: ValenceParams,
) -> dict[str, Shift]:
    """Return the preference shift between the states `before` and `after`, by reading.

    Only one random state at a time has its vectors in memory.

    Args:
        texts: WORDS for the readings `published` and `corrected`, PASSAGES for `direction`.
        vectors: Function that returns the VECTORS of a state by name.
        random: Names of the states after random changes.
        readings: Readings to compute.
        directions: DIRECTIONS for the reading `direction`.

    Raises:
        InputError: Texts are malformed, a state lacks a text, or states differ in width.
        TooLargeError: The vectors, or the resamples, exceed what a task may hold.
    """
    texts = texts.sort_by("passage_id")  # so that the order of the rows changes no bit
    ids = texts["passage_id"].to_pylist()
    if not ids or None in ids or len(set(ids)) != len(ids):
        raise InputError(f"passage ids must be present and unique; got {len(ids)}, {len(set(ids))} of them different")
    before = _state(vectors, BEFORE, ids)
    cost.of_shift(len(ids), before.width, 2 + len(random), params.num_bootstrap).require(cost.TASK)
    after = _state(vectors, AFTER, ids, before.width)

    def read(name: str) -> Reading:
        if name != "direction":
            return word_reading(Words.from_table(texts), before, after, corrected=name == "corrected")
        if directions is None:
            raise InputError("the reading direction needs a table of directions")
        return direction_reading(Passages.from_table(texts), before, after, directions, params.direction)

    reading_by_name = {name: read(name) for name in readings}
    drawn: dict[str, dict[str, np.ndarray | CellError]] = {name: {} for name in reading_by_name}
    for state in random:
        check_cancelled()
        changed = _state(vectors, state, ids, before.width)
        for name, reading in reading_by_name.items():
            if reading.error is None:
                try:
                    drawn[name][state] = reading.values(changed)
                except CellError as error:
                    drawn[name][state] = error
    coverage = float((before.applied & after.applied).mean())
    return {
        name: _shift(reading, before, after, drawn[name], bool(random), coverage, params)
        for name, reading in reading_by_name.items()
    }


def _state(vectors: Callable[[str], pa.Table], name: str, ids: list[str], width: int | None = None) -> PooledVectors:
    """Return the vectors of a state. Raise InputError if a text is missing or twice, or the width is another."""
    table = vectors(name)
    missing = sorted(set(ids) - set(table["passage_id"].to_pylist()))
    if missing:
        examples = ", ".join(map(shown, missing[:5]))
        raise InputError(f"the vectors of state {name} lack {len(missing)} of {len(ids)} texts: {examples}")
    try:
        state_vectors = PooledVectors.from_table(table, ids)
    except InputError as error:
        raise InputError(f"state {name}: {error}") from None
    if state_vectors.readout is not None:
        raise InputError(
            f"state {name} has vectors for the readout {state_vectors.readout}; one vector per text is needed"
        )
    if width is not None and state_vectors.width != width:
        raise InputError(
            f"state {name} has vectors of width {state_vectors.width}, and state {BEFORE} of width {width}"
        )
    return state_vectors


def _shift(
    reading: Reading,
    before: PooledVectors,
    after: PooledVectors,
    random: dict[str, np.ndarray | CellError],
    with_random: bool,
    coverage: float,
    params: ValenceParams,
) -> Shift:
    count = len(reading.measured)
    fields: dict[str, Any] = {"coverage": coverage, "seed": params.seed, "n": count}
    is_words = None not in reading.groups
    if reading.error is not None:
        measures = [*blank_measures(reading.error, with_random, fields)]
        measures += [Measure.failed(PLANE_SHARE, reading.error, **fields)] if is_words else []
        nothing = np.full(count, np.nan)
        return Shift(
            measures, shifts_table(reading, nothing, nothing), WORD_COSINES.empty_table() if is_words else None
        )
    before_n, after_n = reading.values(before), reading.values(after)
    weights_Rn = resample_weights(reading.units, params.num_bootstrap, params.seed)
    fields |= {"num_groups": len(np.unique(reading.units)), "ci_method": reading.ci_method}
    measures = [*shift_measures(before_n, after_n, random, weights_Rn, fields)]
    if is_words:
        assert reading.plane is not None
        shared = {**fields, "n": len(reading.plane.items), "num_groups": None}
        if np.isfinite(reading.plane.share):
            measures.append(Measure.of(PLANE_SHARE, reading.plane.share, **shared))
        else:
            reason = "all words have the same vector in both states"
            measures.append(Measure.null(PLANE_SHARE, Status.COLLAPSED, reason, **shared))
    cosines = (
        None if reading.cosines is None else cosines_table(reading, reading.cosines(before), reading.cosines(after))
    )
    return Shift(measures, shifts_table(reading, before_n, after_n), cosines)
