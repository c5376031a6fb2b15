"""Cuts passages to a window, for interfaces that have no way to say that a text was too long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from poolbench_extractor.encode import Encoded


def truncated(passage: Encoded, limit: int) -> Encoded:
    """A passage of at most ``limit`` positions: its first real tokens, and the special tokens around them.

    The same tokens as a tokenizer leaves that truncates on the right.

    Args:
        passage: With its error, if it was too long.
        limit: Positions, special tokens included.
    """
    context = passage.context
    surplus = context.num_positions - limit
    if surplus <= 0 or surplus >= len(context.real):
        return passage
    kept = np.delete(np.arange(context.num_positions), context.real[-surplus:])
    assert context.token_ids is not None
    shorter = replace(
        context,
        offsets=context.offsets[kept],
        special=context.special[kept],
        token_ids=context.token_ids[kept],
    )
    return replace(passage, context=shorter, error=None)
