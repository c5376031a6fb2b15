"""Specifications, cache salts, and receipts: counts that prove a steering, and counts that do not."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from poolbench.errors import InputError, ReceiptError
from poolbench_steerer.errors import NoEffectError
from poolbench_steerer.plugin.receipts import LayerCount, RowCount, check, counts_of
from poolbench_steerer.plugin.spec import OPERATION_CODES, Condition, Edit, Steering

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


GOOD = RowCount({2: LayerCount(7)}, repeated=0, skipped=0, stray=0, broken={}, end=16, beyond=0)
CLAMPED = Steering((Edit("aa", 2, 1.5, "clamp"),))


def layers(**counts: object) -> dict:
    """``layers`` of a count: changed positions by layer, or a whole LayerCount."""
    made = {int(name[1:]): value for name, value in counts.items()}
    return {"layers": {layer: LayerCount(value) if isinstance(value, int) else value for layer, value in made.items()}}


def test_a_right_count_makes_a_receipt_and_a_coefficient_of_zero_changes_nothing():
    receipt = check(BASE, GOOD, num_prompt_tokens=10, num_new_tokens=7)
    assert (receipt.positions_changed, receipt.positions_expected) == (7, 7)
    assert (receipt.vector_ids, receipt.layers, receipt.alphas) == (("aa",), (2,), (1.5,))
    (edit,) = receipt.to_json()["edits"]
    assert edit == {
        "vector_id": "aa", "layer": 2, "alpha": 1.5, "operation": "add",
        "positions_changed": 7, "positions_applied": 7, "positions_expected": 7,
    }  # fmt: skip
    zero = Steering((Edit("aa", 2, 0.0),))
    receipt = check(zero, dataclasses.replace(GOOD, layers={}), 10, 7)
    assert receipt.positions_expected == 0
    assert receipt.to_json()["edits"][0]["positions_expected"] == 0
    with pytest.raises(ReceiptError):
        check(zero, GOOD, 10, 7)


def test_repeated_positions_count_once_and_must_be_steered_too():
    count = dataclasses.replace(GOOD, **layers(l2=LayerCount(7, 4)), repeated=4)
    assert check(BASE, count, 10, 7).positions_changed == 7
    with pytest.raises(ReceiptError):
        check(BASE, dataclasses.replace(count, **layers(l2=LayerCount(7, 3))), 10, 7)
    with pytest.raises(ReceiptError):
        check(BASE, dataclasses.replace(count, **layers(l2=LayerCount(8, 3))), 10, 7)


def test_a_projection_may_find_its_target_reached_but_must_have_met_every_position():
    """Two of seven positions had the projection already; of the four that were computed again, one."""
    count = dataclasses.replace(GOOD, **layers(l2=LayerCount(5, 0, 7, 0)))
    receipt = check(CLAMPED, count, 10, 7)
    assert (receipt.positions_changed, receipt.positions_applied, receipt.positions_expected) == (5, 7, 7)
    repeated = dataclasses.replace(GOOD, **layers(l2=LayerCount(5, 3, 7, 4)), repeated=4)
    assert check(CLAMPED, repeated, 10, 7) == receipt
    for counts in ((5, 0, 6, 0), (7, 0, 0, 0), (5, 0, 8, 0), (5, 0, 7, 1), (8, 0, 7, 0), (5, 1, 7, 0)):
        with pytest.raises(ReceiptError):
            check(CLAMPED, dataclasses.replace(GOOD, **layers(l2=LayerCount(*counts))), 10, 7)


def test_several_additions_must_change_every_position_that_they_meet():
    both = Steering((Edit("aa", 2, 1.0), Edit("bb", 2, 1.0)))
    assert check(both, dataclasses.replace(GOOD, **layers(l2=LayerCount(7, 0, 7, 0))), 10, 7).positions_changed == 7
    with pytest.raises(ReceiptError):  # an empty slot
        check(both, dataclasses.replace(GOOD, **layers(l2=LayerCount(7, 0, 6, 0))), 10, 7)
    with pytest.raises(NoEffectError, match=r"layer 2 with alpha 1, 1: 6 of 7 positions"):  # two that cancel
        check(both, dataclasses.replace(GOOD, **layers(l2=LayerCount(6, 0, 7, 0))), 10, 7)
    for more in (LayerCount(8, 0, 7, 0), LayerCount(6, 1, 7, 0)):  # more changes than are lost in rounding
        with pytest.raises(ReceiptError):
            check(both, dataclasses.replace(GOOD, **layers(l2=more)), 10, 7)


@pytest.mark.parametrize("changed", [0, 6])
def test_an_addition_lost_in_rounding_is_the_requests_own_error(changed):
    met = dataclasses.replace(GOOD, **layers(l2=LayerCount(changed, 0, 7, 0)))
    with pytest.raises(NoEffectError, match=rf"too small.*alpha 1.5: {changed} of 7 positions changed"):
        check(BASE, met, 10, 7)
    for doubt in ({"skipped": 1}, {"stray": 1}, {"repeated": 2}):
        with pytest.raises(ReceiptError):
            check(BASE, dataclasses.replace(met, **doubt), 10, 7)


@pytest.mark.parametrize("steering", [BASE, CLAMPED])
@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": {}},
        layers(l2=LayerCount(6, 0, 6)),
        layers(l2=LayerCount(8, 0, 8)),
        layers(l3=LayerCount(7, 0, 7)),
        layers(l2=LayerCount(7, 0, 7), l3=LayerCount(7, 0, 7)),
        {"repeated": 1},
        {"skipped": 1},
        {"stray": 1},
    ],
)
def test_a_wrong_count_is_an_error(steering, wrong):
    right = dataclasses.replace(GOOD, **layers(l2=LayerCount(7, 0, 7 if steering is CLAMPED else 0)))
    check(steering, right, 10, 7)
    with pytest.raises(ReceiptError, match="not applied as asked"):
        check(steering, dataclasses.replace(right, **wrong), 10, 7)
    with pytest.raises(ReceiptError, match="not applied as asked"):
        check(steering, dataclasses.replace(GOOD, layers={}), 10, num_new_tokens=1)


def test_the_counts_of_each_request_are_read_from_the_tables_of_all():
    """Three rows: 0 for tokens of no request. Columns are the rows, then their repeats, then their unsteered tokens."""
    rows = SimpleNamespace(
        num_rows=3, account=lambda row: (10 * row, 20 * row), steered_from=lambda row, end: range(end, end)
    )
    changed_LR = torch.tensor([[0, 7, 0, 0, 2, 0, 0, 1, 0], [6, 0, 5, 0, 0, 0, 11, 0, 0]])
    applied_LR = torch.tensor([[0, 8, 0, 0, 3, 0, 0, 0, 0], [0, 0, 9, 0, 0, 0, 0, 0, 0]])
    spared_LR = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 4, 0, 0, 3, 0, 0, 0]])
    broken_LR = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0, 0, 2, 0]])
    state = SimpleNamespace(
        rows=rows, changed_LR=changed_LR, applied_LR=applied_LR, spared_LR=spared_LR, broken_LR=broken_LR
    )
    second, first = counts_of(state, [(2, 60), (1, 30)])
    assert RowCount.from_wire(first) == RowCount({0: LayerCount(7, 2, 8, 3)}, 10, 20, 6 + 11 + 1, {1: 4}, 30, 0)
    assert RowCount.from_wire(second) == RowCount({1: LayerCount(5, 0, 9, 0, 4, 3)}, 20, 40, 6 + 11, {}, 60, 0)


CONDITION = Condition("bb", 1, 0.5)


@pytest.mark.parametrize("operation", ["add", "clamp"])
def test_positions_at_which_a_condition_did_not_hold_are_spared(operation):
    steering = Steering((Edit("aa", 2, 1.5, operation), Edit("aa", 3, 1.5, operation)), where=CONDITION)
    counted = {layer: LayerCount(4, 1, 4, 1, 3, 1) for layer in (2, 3)}
    receipt = check(steering, dataclasses.replace(GOOD, layers=counted, repeated=2), 10, 7)
    assert (receipt.positions_changed, receipt.positions_expected, receipt.positions_spared) == (8, 14, 3)
    assert receipt.to_json()["where"] == {"vector_id": "bb", "layer": 1, "above": 0.5, "positions_spared": 3}
    for wrong in (
        {2: LayerCount(4, 1, 4, 1, 3, 1)},  # one layer was not steered
        counted | {3: LayerCount(5, 1, 5, 1, 2, 1)},  # layers disagree about what was spared
        counted | {3: LayerCount(4, 1, 4, 1, 2, 1)},  # a position is neither
        {layer: LayerCount(5, 1, 5, 1, 3, 1) for layer in (2, 3)},  # one is both
    ):
        with pytest.raises(ReceiptError, match="not applied as asked"):
            check(steering, dataclasses.replace(GOOD, layers=wrong, repeated=2), 10, 7)
    with pytest.raises(ReceiptError, match="not applied as asked"):
        check(Steering(steering.edits), dataclasses.replace(GOOD, layers=counted, repeated=2), 10, 7)


def test_a_condition_is_read_before_its_edits_and_in_the_salt():
    with pytest.raises(InputError, match="read after layer 3, and the edit at layer 2 comes before"):
        Steering((Edit("aa", 2, 1.0),), where=Condition("bb", 3, 0.5))
    for threshold in (float("nan"), float("inf"), 1e9):
        with pytest.raises(InputError, match="threshold of a condition must be finite"):
            Condition("bb", 1, threshold)
    edits = (Edit("aa", 2, 1.0),)
    conditions = [
        None,
        CONDITION,
        Condition("bb", 1, 0.6),
        Condition("bb", 1, 0.5, above=False),
        Condition("cc", 1, 0.5),
    ]
    salts = {Steering(edits, where=where).cache_salt(10) for where in (*conditions, Condition("bb", 2, 0.5))}
    assert len(salts) == 6
    assert Steering(edits, where=CONDITION).vector_ids == ["aa", "bb"]
    assert Steering(edits, where=CONDITION).wire(3, {"aa": 5, "bb": 6}, 10)["where"] == [1, 6, 1.0, 0.5]
