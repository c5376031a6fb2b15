"""Kept states of one layer, aligned with the passages, for strategies that read states instead of vectors."""

from collections.abc import Iterable
from typing import Self

import numpy as np
import pyarrow as pa

from poolbench.errors import CellError, InputError
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.pooling.states import KeptPassage, read_states
from poolbench.statuses import Status
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

#: Most memory that the real tokens of one split at one layer may take: n x T x D x 4 bytes.
MAX_BYTES = 8 << 30


class TokenStates(PooledVectors):
    """Token states of one split.

    `matrix_nW` [n, 1] has one float32 array [T, D] per passage, which is empty if the passage failed.
    """

    @classmethod
    def from_shards(
        cls,
        shards: Iterable[pa.Table],
        passages: Passages,
        readout: str | None,
        sinks: SinkRule = LEAVE_OUT,
        max_bytes: int = MAX_BYTES,
    ) -> Self:
        """Return the states in `shards` in the order of `passages`, without special tokens and left-out sinks.

        Above `max_bytes`, no states are held, and every row has failed with that reason.

        Raises:
            InputError: If a passage is missing or there twice, or states do not say which tokens are special.
        """
        row_of = {passage_id: row for row, passage_id in enumerate(passages.ids)}
        matrix = np.full((len(row_of), 1), None, dtype=object)
        errors: list[CellError | None] = [None] * len(row_of)
        counts_n2, num_bytes = np.zeros((len(row_of), 2), dtype=np.int64), 0
        for states in (states for shard in shards for states in read_states(shard)):
            row = row_of.pop(states.passage_id, None)
            if row is None:
                raise InputError(
                    f"the kept states hold {states.passage_id!r} twice, or it is not a passage of the corpus"
                )
            matrix[row, 0], errors[row], counts_n2[row] = _real_states(states, sinks)
            num_bytes += matrix[row, 0].nbytes
            if num_bytes > max_bytes:
                limit = f"the {max_bytes >> 20} MiB that a prober may hold"
                error = CellError(Status.FAILED, f"the states of all tokens exceed {limit}; take fewer passages")
                matrix[:, 0] = [np.empty((0, 1), np.float32)] * len(errors)
                return cls._of(matrix, [error] * len(errors), readout)
        if row_of:
            raise InputError(f"the kept states lack {len(row_of)} of {len(errors)} passages; keep them again")
        return cls._of(matrix, errors, readout, counts_n2)

    @classmethod
    def _of(
        cls,
        matrix_n1: np.ndarray,
        errors: list[CellError | None],
        readout: str | None,
        counts_n2: np.ndarray | None = None,
    ) -> Self:
        usable = np.array([error is None for error in errors])
        return cls(matrix_n1, usable, usable, tuple(errors), 1, readout, counts_n2)

    @property
    def width(self) -> int:
        """Return the width D of token states, or 1 if no passage has states."""
        return max(int(h_TD.shape[1]) for h_TD in self.matrix_nW[:, 0])

    def means(self, rows: np.ndarray) -> np.ndarray:
        """Return the mean state of each row. The means are all equal only if the passages are."""
        return np.stack([h_TD.mean(axis=0, dtype=np.float64) for h_TD in self.matrix_nW[rows, 0]])


def _real_states(states: KeptPassage, sinks: SinkRule) -> tuple[np.ndarray, CellError | None, tuple[int, int]]:
    """Return the states of the tokens that count, or why there are none; and how many sinks: found, left out."""
    nothing, name = np.empty((0, 1), np.float32), repr(states.passage_id)
    if states.hidden_TD is None:
        error = CellError(Status.FAILED, f"no states of passage {name}")
        return nothing, states.error or error, (0, 0)
    if states.special is None:
        raise InputError(f"the kept states of passage {states.passage_id!r} do not say which tokens are special")
    h_TD = states.hidden_TD[~states.special]
    if not len(h_TD):
        return nothing, CellError(Status.FAILED, f"passage {name} has no real token"), (0, 0)
    if not np.isfinite(h_TD).all():
        return nothing, CellError(Status.NON_FINITE, "hidden states hold NaN or infinity"), (0, 0)
    found_T = sinks.find(np.linalg.norm(h_TD, axis=1), np.ones(len(h_TD), dtype=bool))
    left_out_T = found_T & sinks.leave_out
    return h_TD[~left_out_T], None, (int(found_T.sum()), int(left_out_T.sum()))
