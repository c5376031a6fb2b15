"""The size of a change is bounded before the engine, for every operation and number type."""

import numpy as np
import pytest

from poolbench_steerer.errors import StrengthError
from poolbench_steerer.plugin.bank import Entry, check_change
from poolbench_steerer.plugin.spec import Edit, Steering

#: Largest element 4, length 5.
VECTOR = np.array([3.0, -4.0], dtype=np.float32)
TYPES = ("float32", "bfloat16", "float16")


def checked(dtype: str, *edits: Edit) -> None:
    check_change(Steering(edits), lambda key: Entry(key, 1, VECTOR * (1e10 if key == "long" else 1.0)), dtype)


@pytest.mark.parametrize(
    ("dtype", "operation", "key", "largest"),
    [
        ("float16", "add", "v", 2**15 / 4),
        ("float16", "clamp", "v", 2**15 * 5 / 4),
        ("float16", "add_preserving_norm", "long", 25.0),
        ("float16", "erase", "v", 100.0),
        ("bfloat16", "add", "long", 25.0),
        ("float32", "add", "long", 25.0),
        ("float32", "add_preserving_norm", "long", 25.0),
        ("float32", "erase", "long", 100.0),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_change_is_taken_and_a_larger_one_refused(dtype, operation, key, largest, sign):
    checked(dtype, Edit(key, 0, sign * largest * 0.999, operation))
    with pytest.raises(StrengthError, match=r"at most (3\.28e\+04|1e\+12|100) "):
        checked(dtype, Edit(key, 0, sign * largest * 1.001, operation))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_changes_of_all_edits_of_a_request_count_together(dtype):
    half = 0.6 * (2**15 if dtype == "float16" else 1e12) / 4e10
    edits = Edit("long", 0, half), Edit("long", 3, -half)
    for edit in edits:
        checked(dtype, edit)
    with pytest.raises(StrengthError, match="sum of"):
        checked(dtype, *edits)


def test_clamps_in_wide_types_are_never_too_large():
    """The vector's length does not count, and coefficients end at 1e8."""
    checked("float32", Edit("long", 0, 1e8, "clamp"))
