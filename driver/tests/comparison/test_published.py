"""Cells of a published table beside those of a run made by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from poolbench_driver.assemble import assemble
from poolbench_driver.comparison.published import ComparedCell, RunRows, compare_cells, compare_layers
from poolbench_driver.results import result_table
from poolbench_driver.statistics.correlation import intraclass
from poolbench_driver.suites.poolbench.published_table import published_table

TABLE = published_table()
MODEL = TABLE.model("llama-3.1-8b")
STEERED = {"alpha_unit": "absolute", "opening_set": "published-10", "direction": "C1"}


def row(metric: str, value: float | None, *, protocol: str = "published", **columns: Any) -> dict[str, Any]:
    shared = {
        "run_id": "r", "suite": "poolbench", "protocol": protocol, "budget": "card", "model": MODEL.preset,
        "split": "train", "strategy": "A1_mean", "strategy_version": 1, "concept": "contrast", "metric_version": 1,
        "params": "{}", "layer": 31, "status": "ok" if value is not None else "failed",
    }  # fmt: skip
    return {**shared, "metric": metric, "value": value, **columns}


CORRECTED = [
    row("d1.auroc", 0.44, protocol="corrected", ci_low=0.43, ci_high=0.46),
    row("d1.auroc", 0.9, protocol="corrected", layer=15),
    row("d1.auroc", 0.51, protocol="corrected", concept="hedging", ci_low=0.5, ci_high=0.52),
    row("d2.scp_1", 0.05, protocol="corrected", **STEERED),
    row("d2.fluency", 1.1, protocol="corrected", **{**STEERED, "alpha_unit": "residual_norm"}),
    row("d1.auroc", None, protocol="corrected", strategy="P1_last_token", reason="out of memory"),
    row("d1.auroc", 0.8, protocol="corrected", strategy="W2_last_4", layer=15),
]
PUBLISHED = [
    row("d1.auroc", 0.43, ci_low=0.42, ci_high=0.4333),
    row("d2.scp_1", 0.04, **STEERED),
    row("d3.ld", 0.5, params=json.dumps({"scp": "d2.scp"}), **STEERED),
    row("d3.ld", 1.2, params=json.dumps({"scp": "d2.scp_1"}), **STEERED),
    row("d3.ld", 1.1, params=json.dumps({"scp": "d2.scp_1"}), concept="hedging", **STEERED),
]


def compared(published: list[dict[str, Any]] | None = PUBLISHED) -> Callable[..., ComparedCell]:
    """``find(column, strategy, concept, protocol)`` over all cells of a run made by hand."""
    corrected, others = (rows and result_table(rows).to_pylist() for rows in (CORRECTED, published))
    cells = compare_cells(TABLE, MODEL, RunRows(corrected or [], others))
    by_name = {(cell.column, cell.strategy, cell.concept, cell.protocol): cell for cell in cells}
    assert len(by_name) == len(cells) == 11 * 19 * 17

    def find(column: str, strategy: str = "A1_mean", concept: str = "contrast", protocol: str = "published"):
        return by_name[column, strategy, concept, protocol]

    return find


def test_ours_theirs_difference_and_interval() -> None:
    find = compared()
    cell = find("D1_auroc")
    assert (cell.theirs, cell.ours, cell.inside, cell.reason) == (0.4334, 0.43, False, "")
    assert cell.difference == pytest.approx(-0.0034)
    ours = find("D1_auroc", protocol="corrected")
    assert (ours.ours, ours.ci_low, ours.ci_high, ours.inside) == (0.44, 0.43, 0.46, True)
    gain = find("D2_scp_c")
    assert (gain.metric, gain.theirs, gain.ours, gain.inside) == ("d2.scp_1", 0.03875, 0.04, None)
    assert find("D2_scp_c", protocol="corrected").difference == pytest.approx(0.05 - 0.03875)
    assert find("D3_LD").ours == 1.2  # the ratio of gains


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("D1_auroc", "L2_dependency_rel"), "the source's fell back on the mean"),
        (("D1_auroc", "P3_CLS"), "the run has no strategy P3_first_content"),
        (("D1_auroc", "A1_mean", "planning"), "the run has no concept planning"),
        (("D2_M_c",), "the run did not measure d2.scp"),
        (("D1_auroc", "W1_mean_last_4", "contrast", "corrected"), "the run has layer 15; the table's is 31"),
        (("D1_auroc", "P1_last_token", "contrast", "corrected"), "failed: out of memory"),
        (("D2_phi_c", "A1_mean", "contrast", "corrected"), "steered otherwise: alpha_unit residual_norm, not absolute"),
        (("D3_LD", "A1_mean", "hedging"), "null in the table"),
    ],
)
def test_a_cell_without_a_counterpart_says_why(names: tuple[str, ...], reason: str) -> None:
    cell = compared()(*names)
    assert cell.difference is None and cell.inside is None and cell.reason.startswith(reason)


def test_a_run_without_published_figures_says_how_to_make_them() -> None:
    cell = compared(None)("D1_auroc")
    assert (cell.ours, cell.reason) == (None, "the run has no published figures; run it with --protocol published")


def test_rows_of_an_assembled_run_are_found(steered: Callable[..., Any]) -> None:
    made = steered(strategies=("A1_mean",), protocol="published", metrics=["d2", "d3"], steering={"positions": "all"})
    made.write(lambda key, opening, strength, scorer: 0.1 + strength * (0.8 if scorer == "contrast" else 0.2))
    tables = {name: table.to_pylist() for name, table in assemble(made.plan, made.artifacts, {}, "r").items()}
    run = RunRows(tables["results"], tables["published"])
    cells = compare_cells(TABLE, replace(MODEL, best_layer=made.plan.scope.steering_layer), run)
    found = {(c.column, c.protocol): c.ours for c in cells if c.ours is not None and c.column != "D1_auroc"}
    assert {(cell.strategy, cell.concept) for cell in cells if cell.ours is not None} == {("A1_mean", "contrast")}
    assert {name for name, protocol in found if protocol == "published"} == {
        "D2_scp_c", "D2_M_c", "D3_LD", "D3_LC",
    }  # fmt: skip
    assert found["D2_scp_c", "published"] == pytest.approx(0.1) and found["D2_M_c", "published"] == pytest.approx(1)
    assert found["D3_LD", "published"] == pytest.approx(1 - 0.2 / 0.8)
    assert {name for name, protocol in found if protocol == "corrected"} >= {"D2_scp_c", "D2_M_c", "D2_phi_c"}


def test_the_agreement_of_layers_stands_beside_the_published_one() -> None:
    values = {"A1_mean": (0.4, 0.5, 0.45), "P1_last_token": (0.3, 0.35, 0.4), "own": (0.9, 0.1, 0.5)}
    rows = [
        row("d1.auroc", value, protocol="corrected", strategy=strategy, layer=layer)
        for strategy, of_layers in values.items()
        for layer, value in zip((16, 24, 31), of_layers, strict=True)
    ]
    rows += [row("d1.auroc", 0.5, protocol="corrected", layer=8), row("d1.auroc", 0.5, layer=31)]
    run = RunRows(
        *(result_table([r for r in rows if r["protocol"] == p]).to_pylist() for p in ("corrected", "published"))
    )
    cells = {(cell.concept, cell.protocol): cell for cell in compare_layers(TABLE, MODEL, run)}
    assert len(cells) == 2 * 17
    found = cells["contrast", "corrected"]
    assert (found.theirs, found.our_strategy) == (0.34148, "2 strategies")
    assert found.ours == pytest.approx(intraclass(np.array([values["A1_mean"], values["P1_last_token"]])))
    assert found.difference == pytest.approx(found.ours - 0.34148)
    for other in (cells["contrast", "published"], cells["hedging", "corrected"]):
        assert other.ours is None and other.reason == "two strategies with d1.auroc at layers 16, 24, 31 are needed"
