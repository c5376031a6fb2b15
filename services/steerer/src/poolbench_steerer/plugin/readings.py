"""Worker side: the directions that requests read along, and the scores that were read.

The op writes the score of every token of a pass into a small buffer on the device. Before the next pass, a copy of the
buffer starts its way to the host, which keeps the scores in a table by row and position. A preempted request writes its
positions again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from poolbench_steerer.plugin.rows import NEVER, NUM_COPIES
from poolbench_steerer.plugin.spec import MAX_READINGS

#: Code that keeps the state itself (`kept`), in place of a reading of it.
KEEP = -1


@dataclass(frozen=True)
class BatchReadings:
    """The tokens of a batch whose scores are stored, int64 [tokens].

    Attributes:
        tokens: Indices in the batch.
        owners: How many requests each token's row had before the one that reads.
    """

    tokens: np.ndarray
    rows: np.ndarray
    positions: np.ndarray
    owners: np.ndarray


class ReadingTable:
    """The readings of every row, and their scores.

    Attributes:
        codes: int64 [layers, readings, 3 * rows]. The readings of a row at a layer fill its column from the front. A
            code is bank slot * MAX_READINGS + number of the reading in its request, or `KEEP`, and 0 means none.
        changed: Whether codes have changed since this was last set to False.
    """

    def __init__(self, num_layers: int, num_rows: int, window: int) -> None:
        self.codes = np.zeros((num_layers, MAX_READINGS, NUM_COPIES * num_rows), dtype=np.int64)
        self.changed = False
        self._codes = self.codes.reshape(num_layers, MAX_READINGS, NUM_COPIES, num_rows)
        self._num_rows = num_rows
        self._reading_rows = set[int]()
        self._first = np.full(num_rows, NEVER, dtype=np.int64)
        self._owners = np.zeros(num_rows, dtype=np.int64)
        # The system provides the memory of a row when it is first written to.
        self._scores_RPK = np.zeros((num_rows, window, MAX_READINGS), dtype=np.float32)

    def admit(self, row: int, wire: dict[str, Any]) -> None:
        """Fill the row of a new request."""
        readings: Sequence[tuple[int, int]] = wire.get("readings", ())
        codes = [(layer, slot * MAX_READINGS + number) for number, (layer, slot) in enumerate(readings)]
        codes += [(wire["pool"][0], KEEP)] if "pool" in wire else []
        if not codes and row not in self._reading_rows:
            return
        self.changed = True
        self._owners[row] += 1
        self._codes[..., row] = 0
        for layer, code in codes:
            place = int(np.count_nonzero(self._codes[layer, :, 0, row]))
            self._codes[layer, place, :, row] = code
        self._first[row] = int(wire["read_from"]) if readings else NEVER
        (self._reading_rows.add if codes else self._reading_rows.discard)(row)
        self._scores_RPK[row] = np.nan

    @property
    def in_use(self) -> bool:
        """Return whether any row reads."""
        return bool(self._reading_rows)

    def of_batch(self, token_rows: np.ndarray, positions: np.ndarray) -> BatchReadings | None:
        """Return the tokens of a batch whose scores are to be kept, or None."""
        if not self.in_use:
            return None
        rows = token_rows % self._num_rows
        tokens = np.flatnonzero(positions >= self._first[rows])
        if not len(tokens):
            return None
        return BatchReadings(tokens, rows[tokens], positions[tokens], self._owners[rows[tokens]])

    def keep(self, batch: BatchReadings, scores_TK: torch.Tensor) -> None:
        """Keep the scores of a batch, without those of requests whose row has another owner by now."""
        current = self._owners[batch.rows] == batch.owners
        self._scores_RPK[batch.rows[current], batch.positions[current]] = scores_TK.numpy()[batch.tokens[current]]

    def scores(self, row: int, first: int, stop: int, num_readings: int) -> np.ndarray:
        """Return the scores of a row at positions `first` to `stop` - 1 [positions, readings], NaN where not read."""
        return self._scores_RPK[row, first:stop, :num_readings]
