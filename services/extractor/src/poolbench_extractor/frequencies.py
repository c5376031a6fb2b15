"""How often tokens occur in the train passages of a run: counted once, then known before any forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import TOKEN_COUNTS
from poolbench.errors import InputError
from poolbench.pooling.context import TokenContext


@dataclass(frozen=True)
class Frequencies:
    """Relative frequencies of token ids.

    Attributes:
        of_id: Float64, by token id; ids beyond its end do not occur.
    """

    of_id: np.ndarray

    @classmethod
    def from_table(cls, counts: pa.Table) -> Self:
        """From TOKEN_COUNTS.

        Raises:
            InputError: If nothing was counted.
        """
        if counts.num_rows == 0:
            raise InputError("the train passages hold no token to count")
        ids, numbers = (counts[name].to_numpy() for name in TOKEN_COUNTS.names)
        of_id = np.bincount(ids, weights=numbers)
        return cls(of_id / of_id.sum())

    def added_to(self, context: TokenContext) -> TokenContext:
        """The passage with the signal ``frequency`` [T]; a token that does not occur has 0."""
        assert context.token_ids is not None
        known = context.token_ids < len(self.of_id)
        frequency_T = np.where(known, self.of_id[np.where(known, context.token_ids, 0)], 0.0)
        return context.at_layer({"frequency": frequency_T})


def count_tokens(passages: Iterable[TokenContext]) -> pa.Table:
    """TOKEN_COUNTS of the real tokens of passages, by ascending id."""
    found = [context.token_ids[context.real] for context in passages if context.token_ids is not None]
    ids, counts = np.unique(np.concatenate([np.empty(0, np.int64), *found]), return_counts=True)
    return pa.table([pa.array(ids), pa.array(counts)], schema=TOKEN_COUNTS)
