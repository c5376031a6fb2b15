"""Worker side: the hidden states of texts that are pooled, on the host, and their pooled vectors.

The op writes the states of such texts at one layer into a buffer on the device. Before the next pass, a copy of them
starts its way to the host. At the end of a text, the functions of `poolbench.pooling` pool its prompt and its answer.
A preempted request writes its positions again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from poolbench.errors import CellError
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.context import TokenContext


class TextStates:
    """The states of one text.

    Attributes:
        states_PD: States by position, in the number type of the model. The system provides memory as it is written to.
        known_P: The positions whose state is there, bool.
    """

    def __init__(self, num_positions: int, width: int, dtype: torch.dtype) -> None:
        self.states_PD = torch.empty(num_positions, width, dtype=dtype)
        self.known_P = np.zeros(num_positions, dtype=bool)

    def write(self, first: int, states_ND: torch.Tensor) -> None:
        """Write the states of successive positions."""
        places = slice(first, first + len(states_ND))
        self.states_PD[places] = states_ND
        self.known_P[places] = True


@dataclass(frozen=True)
class BatchStates:
    """The tokens of a batch whose states are kept.

    Attributes:
        tokens: Indices in the batch, int64 [tokens].
        texts: For each text, its states, its first position and the number of its tokens, in the order of `tokens`.
    """

    tokens: np.ndarray
    texts: Sequence[tuple[TextStates, int, int]]

    def keep(self, states_ND: torch.Tensor) -> None:
        """Write the states of the tokens. Those of a text that is forgotten go nowhere."""
        parts = states_ND.split([count for _, _, count in self.texts])
        for (text, first, _), part_ND in zip(self.texts, parts, strict=True):
            text.write(first, part_ND)


class KeptStates:
    """The states of all texts that are pooled, by row."""

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype) -> None:
        self._width, self._dtype, self._num_rows = width, dtype, num_rows
        self._texts: dict[int, TextStates] = {}
        self._stop = np.zeros(num_rows, dtype=np.int64)  # first position of a row that is not kept

    def admit(self, row: int, num_positions: int | None) -> None:
        """Begin to keep the states of a new request. None keeps nothing."""
        self.forget([row])
        if num_positions is not None:
            self._texts[row] = TextStates(num_positions, self._width, self._dtype)
            self._stop[row] = num_positions

    def forget(self, rows: Sequence[int]) -> None:
        """Release the states of rows, if there are any."""
        for row in rows:
            self._texts.pop(row, None)
        self._stop[rows] = 0

    def of_batch(self, token_rows: np.ndarray, positions: np.ndarray) -> BatchStates | None:
        """Return the tokens of a batch whose states are to be kept, or None."""
        if not self._texts:
            return None
        rows = token_rows % self._num_rows
        # An engine that schedules ahead computes positions behind the last one of a text.
        tokens = np.flatnonzero(positions < self._stop[rows])
        if not len(tokens):
            return None
        starts = np.flatnonzero(np.diff(rows[tokens], prepend=-1))  # the tokens of a request follow each other
        counts = np.diff(starts, append=len(tokens))
        places = zip(tokens[starts], counts, strict=True)
        return BatchStates(tokens, [(self._texts[rows[at]], int(positions[at]), int(count)) for at, count in places])

    def pooled(self, text: dict[str, Any]) -> list[list[tuple[bytes | None, str | None]]] | None:
        """Return the pooled vectors of the prompt and of the answer by each strategy, or why there is none.

        Args:
            text: `row`; `num_prompt`, positions of the prompt; `end`, the first position that is not pooled; `special`,
                positions of special tokens; `strategies`, by name.

        Returns:
            float32 vectors as bytes. None if the state of a position is missing or not finite.
        """
        states, num_prompt, end = self._texts.get(text["row"]), text["num_prompt"], text["end"]
        if states is None or not states.known_P[:end].all():
            return None
        states_TD = states.states_PD[:end]
        if not states_TD.isfinite().all():
            return None
        special_T = np.zeros(end, dtype=bool)
        special_T[text["special"]] = True
        weighing = Weighing.of(_contexts(special_T, num_prompt), [Request.of(name) for name in text["strategies"]])
        vectors_BSD, outcomes, _ = pool_layer([states_TD[:num_prompt], states_TD], weighing)
        return [
            [
                (None, str(outcome)) if isinstance(outcome, CellError) else (vector_D.tobytes(), None)
                for vector_D, outcome in zip(vectors_SD, row, strict=True)
            ]
            for vectors_SD, row in zip(vectors_BSD, outcomes, strict=True)
        ]


def _contexts(special_T: np.ndarray, num_prompt: int) -> list[TokenContext]:
    """Return prompt and answer as passages. The answer is a span of the whole text, in which sinks are sought."""
    no_offsets = np.empty((0, 2), dtype=np.int64)
    of_prompt_T = np.arange(len(special_T)) < num_prompt
    return [
        TokenContext("prompt", no_offsets, special_T[:num_prompt]),
        TokenContext("answer", no_offsets, special_T | of_prompt_T, text=~special_T),
    ]
