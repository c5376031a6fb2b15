"""Specifications, cache salts and receipts."""

import dataclasses

import pytest

from poolbench.errors import InputError, ReceiptError
from poolbench_steerer.plugin import check_vllm_version
from poolbench_steerer.plugin.receipts import RowCount, check
from poolbench_steerer.plugin.spec import Edit, Steering

BASE = Steering((Edit("aa", 2, 1.5),))
GOOD = RowCount(changed={2: 7}, repeated=0, skipped=0, stray=0)


def test_any_difference_changes_the_cache_salt():
    others = [
        Steering((Edit("bb", 2, 1.5),)),
        Steering((Edit("aa", 3, 1.5),)),
        Steering((Edit("aa", 2, 1.5000000000000002),)),
        Steering((Edit("aa", 2, -1.5),)),
        Steering((Edit("aa", 2, 1.5),), "all"),
        Steering((Edit("aa", 2, 1.5), Edit("aa", 3, 1.5))),
    ]
    salts = {steering.cache_salt() for steering in [BASE, *others]}
    assert len(salts) == 7
    assert Steering((Edit("aa", 2, 1.5),)).cache_salt() == BASE.cache_salt()


def test_the_order_of_edits_does_not_change_the_salt():
    a, b = Edit("aa", 2, 1.0), Edit("bb", 4, 2.0)
    assert Steering((a, b)).cache_salt() == Steering((b, a)).cache_salt()


@pytest.mark.parametrize(("positions", "first", "count"), [("generated", 9, 5), ("all", 0, 14)])
def test_positions_of_ten_prompt_and_five_new_tokens(positions, first, count):
    steering = Steering((Edit("aa", 2, 1.5),), positions)
    assert steering.first_position(10) == first
    assert steering.num_positions(10, 5) == count


def test_impossible_specifications_are_refused():
    with pytest.raises(InputError, match="distinct layers"):
        Steering((Edit("aa", 2, 1.0), Edit("bb", 2, 1.0)))
    with pytest.raises(InputError, match="one or more edits"):
        Steering(())
    for absurd in (float("nan"), float("inf"), -1e9):
        with pytest.raises(InputError, match="finite and at most 1e\\+08"):
            Edit("aa", 0, absurd)


def test_a_right_count_makes_a_receipt():
    receipt = check(BASE, GOOD, num_prompt_tokens=10, num_new_tokens=7)
    assert (receipt.positions_changed, receipt.positions_expected) == (7, 7)
    assert (receipt.vector_ids, receipt.layers, receipt.alphas) == (("aa",), (2,), (1.5,))


def test_repeated_positions_count_once():
    count = dataclasses.replace(GOOD, changed={2: 11}, repeated=4)
    assert check(BASE, count, 10, 7).positions_changed == 7


def test_a_coefficient_of_zero_must_change_nothing():
    zero = Steering((Edit("aa", 2, 0.0),))
    assert check(zero, dataclasses.replace(GOOD, changed={}), 10, 7).positions_expected == 0
    with pytest.raises(ReceiptError):
        check(zero, GOOD, 10, 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"changed": {}},
        {"changed": {2: 6}},
        {"changed": {2: 8}},
        {"changed": {3: 7}},
        {"changed": {2: 7, 3: 7}},
        {"skipped": 1},
        {"stray": 1},
    ],
)
def test_a_wrong_count_is_an_error(wrong):
    with pytest.raises(ReceiptError, match="not applied as asked"):
        check(BASE, dataclasses.replace(GOOD, **wrong), 10, 7)


def test_other_vllm_releases_are_refused():
    check_vllm_version("0.32.0+cpu")
    with pytest.raises(RuntimeError, match=r"0\.19\.1 is not supported.*0\.32"):
        check_vllm_version("0.19.1")
