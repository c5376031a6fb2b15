"""A request whose states or log-probabilities are not finite fails alone: its text means nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from poolbench_steerer.errors import StateOverflowError
from poolbench_steerer.plugin.counts import RowCount


def check_counts(count: RowCount, dtype: str) -> None:
    """Raises StateOverflowError when states of a finished request broke, naming the layers."""
    if count.broken:
        places = ", ".join(f"{positions} after layer {layer}" for layer, positions in sorted(count.broken.items()))
        raise StateOverflowError(
            f"states of the model became too large for {dtype} ({places}), so the text is discarded; steer with "
            "less strength, or load the model in a wider type"
        )


def check_logprobs(logprobs: Iterable[float], dtype: str) -> None:
    """Raises StateOverflowError for a log-probability that is not finite."""
    broken = [value for value in logprobs if not math.isfinite(value)]
    if broken:
        raise StateOverflowError(
            f"{len(broken)} log-probabilities of the model are not finite (first: {broken[0]}): its states became too "
            f"large for {dtype}; steer with less strength, or load the model in a wider type"
        )
