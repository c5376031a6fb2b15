"""How much a text repeats itself."""

from __future__ import annotations

from collections.abc import Sequence


def repeated_4grams(token_ids: Sequence[int]) -> float | None:
    """Share of 4-grams that occurred before in the same text; None under four tokens."""
    grams = [tuple(token_ids[start : start + 4]) for start in range(len(token_ids) - 3)]
    return 1.0 - len(set(grams)) / len(grams) if grams else None
