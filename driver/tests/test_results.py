"""Result rows: what identifies a cell, what a table refuses, and the digest of equal runs."""

from typing import Any

import pytest

from poolbench_driver.results import IDENTITY, VOLATILE, cell_id, result_table, results_digest


def _row(**changes: Any) -> dict[str, Any]:
    row = {
        "run_id": "r1", "suite": "poolbench", "model": "demo", "layer": 2, "strategy": "A1_mean", "concept": "contrast",
        "metric": "d1.auroc", "params": "{}", "value": 0.8123456789, "ci_low": 0.7, "ci_high": 0.9, "status": "ok",
        "wall_s": 1.5, "created_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return {**row, **changes}


def test_the_digest_ignores_order_rounding_and_what_differs_between_equal_runs() -> None:
    rows = [_row(layer=layer, value=layer / 10) for layer in range(5)]
    volatile = dict.fromkeys(VOLATILE, None) | {"run_id": "r2", "wall_s": 99.0, "peak_bytes": 7}
    again = [row | volatile for row in reversed(rows)]
    assert results_digest(result_table(rows)) == results_digest(result_table(again))
    base = results_digest(result_table([_row(value=0.81234561)]))
    assert base == results_digest(result_table([_row(value=0.81234563)]))
    assert results_digest(result_table([_row(value=0.0)])) == results_digest(result_table([_row(value=-0.0)]))
    results_digest(result_table([_row(ci_high=float("inf"))]))


@pytest.mark.parametrize("change", [{"value": 0.81235}, {"status": "failed", "value": None}, {"seed": 1}, {"layer": 3}])
def test_the_digest_moves_with_what_is_measured(change: dict[str, Any]) -> None:
    assert results_digest(result_table([_row()])) != results_digest(result_table([_row(**change)]))


@pytest.mark.parametrize("column", IDENTITY)
def test_a_cell_is_identified_by_each_identity_column(column: str) -> None:
    assert cell_id(_row()) != cell_id(_row(**{column: 77}))


@pytest.mark.parametrize("column", ["value", "run_id", "seed", "status", "created_at", "config_hash"])
def test_a_cell_is_not_identified_by_its_outcome(column: str) -> None:
    assert cell_id(_row()) == cell_id(_row(**{column: "other"}))


@pytest.mark.parametrize(
    "wrong", [{"value": None}, {"status": "failed"}, {"value": float("nan")}, {"value": float("inf")}]
)
def test_a_value_needs_status_ok_and_must_be_finite(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"d1\.auroc"):
        result_table([_row(**wrong)])


def test_parameters_are_text_with_sorted_keys() -> None:
    table = result_table([_row(params={"b": 1, "a": 2})])
    assert table["params"].to_pylist() == ['{"a": 2, "b": 1}']
