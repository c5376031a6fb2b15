"""Vectors of the instances of a task, from the vectors of their passages in any number of tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from poolbench.errors import CellError, InputError
from poolbench.statuses import Status
from poolbench_prober.inputs.vectors import PooledVectors, joined

#: Passages of the first and, in a pair, of the second part of an instance.
Parts = tuple[tuple[str, ...], ...]


def instance_vectors(instances: Sequence[Parts], tables: Iterable[pa.Table]) -> PooledVectors:
    """Return one row per instance: each part is the mean of its passages, and the parts of a pair are concatenated.

    If a passage of an instance has no vector, the instance is not usable and carries the reason. A passage may be in
    several tables, of which the first with a finite vector counts.

    Args:
        instances: The parts of each instance [n].
        tables: VECTORS of any passages, in any order.

    Raises:
        InputError: There is no table, or a table has a passage twice, a readout, or a different width.
    """
    passages = _Passages.read({passage for parts in instances for part in parts for passage in part}, tables)
    return joined([passages.means([parts[number] for parts in instances]) for number in range(len(instances[0]))])


@dataclass(frozen=True)
class _Passages:
    """Vectors of passages; one without a vector has a row of NaN and its reason."""

    row_of: dict[str, int]  # row of each passage id
    vectors: PooledVectors  # one row per passage [p, D]

    @classmethod
    def read(cls, passage_set: set[str], tables: Iterable[pa.Table]) -> Self:
        """Read the vectors of the passages in `passage_set`. Raise the InputErrors of `instance_vectors`."""
        row_of = {passage: row for row, passage in enumerate(sorted(passage_set))}
        errors: list[CellError | None] = [
            CellError(Status.FAILED, f"no table holds a vector of passage {passage!r}") for passage in row_of
        ]
        matrix_pD: np.ndarray | None = None
        applied, usable = np.zeros((2, len(row_of)), dtype=bool)
        for table in tables:
            held = [passage for passage in dict.fromkeys(table["passage_id"].to_pylist()) if passage in row_of]
            read = PooledVectors.from_table(table, held)
            if read.readout is not None:
                raise InputError(f"vectors of a task are read as they are; these have the readout {read.readout}")
            if matrix_pD is None:
                matrix_pD = np.full((len(row_of), read.width), np.nan)
            if read.width != matrix_pD.shape[1]:
                raise InputError(f"the shards have vectors of the widths {matrix_pD.shape[1]} and {read.width}")
            for number, row in enumerate(row_of[passage] for passage in held):
                if not usable[row]:
                    matrix_pD[row], applied[row] = read.matrix_nW[number], read.applied[number]
                    usable[row], errors[row] = read.usable[number], read.errors[number]
        if matrix_pD is None:
            raise InputError("there are no vectors; give at least one shard")
        return cls(row_of, PooledVectors(matrix_pD, usable, applied, tuple(errors)))

    def means(self, parts: Sequence[tuple[str, ...]]) -> PooledVectors:
        """Return the mean of the passages of each part [n, D]. A part without all its passages is not usable."""
        rows = [[self.row_of[passage] for passage in part] for part in parts]
        ends, flat = np.cumsum([0, *map(len, rows)]), np.concatenate(rows)
        shares = np.repeat(1 / np.diff(ends), np.diff(ends))
        weights_np = csr_array((shares, flat, ends), shape=(len(rows), len(self.row_of)))
        of = self.vectors
        return PooledVectors(
            matrix_nW=weights_np @ of.matrix_nW,
            usable=np.logical_and.reduceat(of.usable[flat], ends[:-1]),
            applied=np.logical_and.reduceat(of.applied[flat], ends[:-1]),
            errors=tuple(next((of.errors[row] for row in part if not of.usable[row]), None) for part in rows),
        )
