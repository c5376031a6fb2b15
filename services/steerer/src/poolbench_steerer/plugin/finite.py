"""How large a state may become: beyond it the model's own norms overflow, and its keys and values become NaN."""

from __future__ import annotations

import torch

#: A norm sums the squares of a state in float32: 65,536 squares of 2**50 are still finite.
_WIDE = 2.0**50


def state_limit(dtype: torch.dtype) -> float:
    """The largest element that a sound state has: in float16 what the type holds, else 2**50."""
    return min(_WIDE, torch.finfo(dtype).max)
