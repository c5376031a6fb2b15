"""Rows of gates that contradict one another, and a part that could not be judged."""

import json
from typing import Any

import pytest

from poolbench_driver.contract.verification import State
from poolbench_driver.suites.poolbench.gates import check_gates

C_PARTS = [{"part": "c", "texts": texts, "of": of} for texts in ("shuffled", "looping") for of in ("both", "negatives")]


def row(params: dict[str, Any], value: float | None, *interval: float, status: str = "ok") -> dict[str, Any]:
    low, high = interval or (None, None)
    fields = {"value": value, "ci_low": low, "ci_high": high, "status": status, "reason": None}
    return {"metric": "scorer.gate", "scorer": "hedging", "params": json.dumps(params), **fields}


def rows(part_b: dict[str, Any], verdict: float) -> list[dict[str, Any]]:
    c_parts = [row(params, 0.1, 0.0, 0.2) for params in C_PARTS]
    sides = (("positive", 0.9), ("negative", 0.1))
    means = [{**row({}, mean), "metric": f"scorer.{side}_mean"} for side, mean in sides]
    return [row({"part": "a"}, 0.9, 0.8, 0.95), part_b, *c_parts, *means, row({"part": "verdict"}, verdict)]


@pytest.mark.parametrize(
    ("part_b", "verdict"),
    [
        (row({"part": "b"}, 0.8, 0.61, 0.9), 1.0),
        (row({"part": "b"}, 0.8, 0.6, 0.9), 0.0),
        (row({"part": "b"}, None, status="too_few"), 0.0),
        (row({"part": "b", "rule": 1}, 0.8, 0.6, 0.9), 0.0),
        (row({"part": "b", "rule": 1}, None, status="too_few"), 1.0),
        (row({"part": "b", "rule": 1}, None, status="failed"), 0.0),
    ],
)
def test_a_verdict_follows_from_its_parts(part_b: dict[str, Any], verdict: float) -> None:
    assert check_gates(rows(part_b, verdict), {"hedging"}).state == State.UNCHECKED
    assert check_gates(rows(part_b, 1 - verdict), {"hedging"}).state == State.FAILED
