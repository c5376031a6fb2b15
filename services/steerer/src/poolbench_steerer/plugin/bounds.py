"""Bounds on the change of a request, checked before the engine gets it, for every operation.

The model's states get the coefficient times the vector, in the model's number type. A change that is not finite
there, or too large for the norms of the model, would break the states of the request. The bounds are far above any
use: median residual norms are about 1 to 1,000, those of attention sinks up to some 100,000.
"""

from __future__ import annotations

from collections.abc import Callable

from poolbench_steerer.errors import StrengthError
from poolbench_steerer.plugin.bank import Entry
from poolbench_steerer.plugin.spec import Edit, Steering

#: Largest change of an element of a state, summed over the edits of a request.
MAX_CHANGE = 1e12
#: The same in float16, whose largest number is 65,504: half of that, so that the model's own states have room.
MAX_CHANGE_FLOAT16 = 2.0**15
#: Largest share of a projection that an erasure may remove; 1 removes all of it.
MAX_SHARE = 100.0


def max_change(dtype: str) -> float:
    """Return the bound for a model whose states have this type, such as `bfloat16`."""
    return MAX_CHANGE_FLOAT16 if dtype == "float16" else MAX_CHANGE


def check_change(steering: Steering, entry_of: Callable[[str], Entry], dtype: str) -> None:
    """Raise StrengthError, with the size and the bound, for edits that could make a state overflow."""
    changes = {edit: _change(edit, entry_of(edit.vector_id)) for edit in steering.edits}
    # An addition that preserves the norm is computed in float32, and leaves the state as large as it was.
    stored = sum(change for edit, change in changes.items() if edit.operation != "add_preserving_norm")
    for size, bound, computed in ((stored, max_change(dtype), dtype), (sum(changes.values()), MAX_CHANGE, "float32")):
        if not size <= bound:
            raise StrengthError(
                f"the edits change an element of a state by up to {size:.3g} (sum of |alpha| times the largest "
                f"element of the vector); at most {bound:.3g} can be computed safely in {computed}: lower alpha or "
                "strength, or scale the vector down"
            )
    share = max((abs(edit.alpha) for edit in steering.edits if edit.operation == "erase"), default=0.0)
    if share > MAX_SHARE:
        raise StrengthError(
            f"erase has alpha {share:.3g}; at most {MAX_SHARE:.0f} is taken: alpha is the share of the projection "
            "to remove, and 1 removes all of it"
        )


def _change(edit: Edit, entry: Entry) -> float:
    """Return the most that an edit adds to an element, apart from the state's own part."""
    if edit.operation == "erase":
        return 0.0
    scale = entry.length if edit.operation == "clamp" else 1.0
    return abs(edit.alpha) * entry.peak / scale
