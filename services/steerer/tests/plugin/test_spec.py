"""Specifications, cache salts and receipts."""

import pytest

from poolbench.errors import InputError
from poolbench_steerer.plugin.spec import OPERATION_CODES, Edit, Steering

BASE = Steering((Edit("aa", 2, 1.5),))


def test_the_cache_salt_changes_with_any_difference():
    others = [
        Steering((Edit("bb", 2, 1.5),)),
        Steering((Edit("aa", 3, 1.5),)),
        Steering((Edit("aa", 2, 1.5000000000000002),)),
        Steering((Edit("aa", 2, -1.5),)),
        Steering((Edit("aa", 2, 1.5),), "all"),
        Steering((Edit("aa", 2, 1.5), Edit("aa", 3, 1.5))),
    ]
    salts = {steering.cache_salt(10) for steering in [BASE, *others]}
    assert len(salts) == 7
    assert Steering((Edit("aa", 2, 1.5),)).cache_salt(10) == BASE.cache_salt(10)
    a, b = Edit("aa", 2, 1.0), Edit("bb", 4, 2.0)
    assert Steering((a, b)).cache_salt(10) == Steering((b, a)).cache_salt(10)
    # The steered answer of one request may be the unsteered prompt of the next.
    assert BASE.cache_salt(10) != BASE.cache_salt(14)
    fixed = Steering((Edit("aa", 2, 1.5),), 4)
    assert fixed.cache_salt(10) == fixed.cache_salt(14)
    operations = [Steering((Edit("aa", 2, 1.5, operation),)) for operation in OPERATION_CODES]
    a, b = Edit("aa", 2, 1.0, "clamp"), Edit("bb", 2, 1.0, "clamp")
    salts = {steering.cache_salt(10) for steering in [*operations, Steering((a, b)), Steering((b, a))]}
    assert len(salts) == 6


@pytest.mark.parametrize(
    ("positions", "first", "count", "reads_cache"),
    [
        ("generated", 9, 5, True),
        ("all", 0, 14, False),
        ("prompt", 0, 10, False),
        (0, 0, 14, False),
        (8, 8, 6, False),
        (9, 9, 5, True),
        (12, 12, 2, True),
        (20, 20, 0, True),
    ],
)
def test_positions_of_ten_prompt_and_five_new_tokens(positions, first, count, reads_cache):
    steering = Steering((Edit("aa", 2, 1.5),), positions)
    assert steering.first_position(10) == first
    assert steering.num_positions(10, 5) == count
    assert steering.steers_prompt(10) is not reads_cache


def test_edits_at_one_layer_act_in_stages():
    erase, clamp = Edit("aa", 1, 1.0, "erase"), Edit("bb", 1, 0.0, "clamp")
    plain, kept = Edit("cc", 1, 2.0), Edit("dd", 1, 2.0, "add_preserving_norm")
    other = Edit("ee", 0, 0.0, "erase")
    steering = Steering((erase, clamp, kept, plain, other))
    assert steering.applied == (other, kept, plain, clamp, erase)
    assert steering.live_by_layer == {1: (kept, plain, clamp, erase)}  # erasing with coefficient 0 is nothing
    assert steering.max_edits_per_layer == 4
    wire = steering.wire(3, dict.fromkeys(("aa", "bb", "cc", "dd", "ee"), 7), 10)
    assert wire["edits"] == [[1, 7, 2, 2.0], [1, 7, 1, 2.0], [1, 7, 3, 0.0], [1, 7, 4, 1.0]]
    assert (wire["row"], wire["start"], wire["stop"]) == (3, 9, None)


def test_impossible_specifications_are_refused():
    with pytest.raises(InputError, match="once per layer and operation"):
        Steering((Edit("aa", 2, 1.0), Edit("aa", 2, 2.0)))
    with pytest.raises(InputError, match="one or more edits"):
        Steering(())
    with pytest.raises(InputError, match="known: add, add_preserving_norm, clamp, erase"):
        Edit("aa", 0, 1.0, "rotate")
    for positions in (-1, "answer", True, 1.5):
        with pytest.raises(InputError, match="positions must be generated, all, prompt or a number"):
            Steering((Edit("aa", 2, 1.0),), positions)
    for absurd in (float("nan"), float("inf"), -1e9):
        with pytest.raises(InputError, match="finite and at most 1e\\+08"):
            Edit("aa", 0, absurd)
