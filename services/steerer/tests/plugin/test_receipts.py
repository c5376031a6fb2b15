"""Receipts: counts that prove a steering, and counts that do not."""

import dataclasses

import pytest

from poolbench.errors import ReceiptError
from poolbench_steerer.errors import NoEffectError
from poolbench_steerer.plugin.receipts import LayerCount, RowCount, check
from poolbench_steerer.plugin.spec import Edit, Steering

BASE = Steering((Edit("aa", 2, 1.5),))


GOOD = RowCount({2: LayerCount(7)}, repeated=0, skipped=0, stray=0)


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
    """Two of seven positions had the projection already."""
    count = dataclasses.replace(GOOD, **layers(l2=LayerCount(5, 0, 7, 0)))
    receipt = check(CLAMPED, count, 10, 7)
    assert (receipt.positions_changed, receipt.positions_applied, receipt.positions_expected) == (5, 7, 7)
    for met in (LayerCount(5, 0, 6, 0), LayerCount(7, 0, 0, 0), LayerCount(5, 0, 8, 0), LayerCount(5, 0, 7, 1)):
        with pytest.raises(ReceiptError):
            check(CLAMPED, dataclasses.replace(GOOD, **layers(l2=met)), 10, 7)


def test_several_additions_must_change_every_position_that_they_meet():
    both = Steering((Edit("aa", 2, 1.0), Edit("bb", 2, 1.0)))
    assert check(both, dataclasses.replace(GOOD, **layers(l2=LayerCount(7, 0, 7, 0))), 10, 7).positions_changed == 7
    with pytest.raises(ReceiptError):  # an empty slot
        check(both, dataclasses.replace(GOOD, **layers(l2=LayerCount(7, 0, 6, 0))), 10, 7)
    with pytest.raises(NoEffectError, match=r"layer 2 with alpha 1, 1: 6 of 7 positions"):  # two that cancel
        check(both, dataclasses.replace(GOOD, **layers(l2=LayerCount(6, 0, 7, 0))), 10, 7)


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
