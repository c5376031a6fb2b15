"""Tables of PoolBench's page: D1 in detail, and published means beside ours."""

import json
from typing import Any

import pytest
from driver.tests.page_reader import heads_of, texts_of

from poolbench_driver.suites.poolbench.report.board import build_d1, build_published, layer_parts, mean_cell

ORDER = ("A1_mean", "L5_keyword", "P1_last_token", "S2_gradient")


def row(strategy: str | None, metric: str, value: float | None, **columns: Any) -> dict[str, Any]:
    status = "ok" if value is not None else "collapsed"
    shared = {"concept": "contrast", "layer": 2, "params": "{}", "status": status}
    return {**shared, "strategy": strategy, "metric": metric, "value": value, **columns}


def by_scp(strategy: str, value: float, scp: str) -> dict[str, Any]:
    return row(strategy, "d3.ld", value, params=json.dumps({"scp": scp}))


def test_d1_in_detail_is_the_mean_over_concepts_and_layers() -> None:
    rows = [
        row("A1_mean", "d1.auroc", 0.9),
        row("A1_mean", "d1.auroc", 0.8, layer=3),
        row("A1_mean", "d1.auroc", None, concept="hedging"),
        row("A1_mean", "d1.seed_spread", 0.0012),
        row("A1_mean", "d1.seed_spread", 0.0004, layer=3),
        row("A1_mean", "d1.auroc_nested", 0.95, layer=None),
        row("A1_mean", "d1.auroc_permuted", 0.5),
        row(None, "d1.alarms", 0.0),
    ]
    table = build_d1(rows, ORDER)
    assert table is not None
    assert heads_of(table) == ["strategy", "d1.auroc", "d1.auroc_nested", "d1.seed_spread"]
    assert texts_of(table) == [["A1_mean", "0.850 (2/3)", "0.950", "0.0008"]]
    assert table.lines[0].cells[1].value == pytest.approx(0.85)


def test_the_interval_of_a_mean_is_over_concepts_and_not_a_mean_of_limits() -> None:
    """Of two concepts with 0 and 1, a quarter of the resamples has a mean of 0, and a quarter one of 1."""
    ends = {"ci_low": 0.4, "ci_high": 0.6}
    values = {"contrast": 0.0, "hedging": 1.0}
    rows = [
        row("A1_mean", "d1.auroc", value, concept=concept, layer=layer, **ends)
        for concept, value in values.items()
        for layer in (2, 3)
    ]
    mean = mean_cell(rows)
    assert (mean.value, mean.ci_low, mean.ci_high) == (0.5, 0.0, 1.0)
    layers = mean_cell(rows[:2])
    assert (layers.value, layers.ci_low, layers.ci_high) == (0.0, None, None)
    one = mean_cell([rows[0], row("A1_mean", "d1.auroc", None, concept="hedging")])
    assert (one.text, one.ci_low, one.ci_high) == ("0.000 (1/2)", 0.4, 0.6)


def test_directions_follow_in_the_order_of_the_docs_and_say_where_they_are() -> None:
    names = ("LDA", "C1_centred", "own", "C5", "C1")
    rows = [row("A1_mean", "d1.auroc", 0.9, layer=layer) for layer in (2, 3)]
    rows += [
        row("A1_mean", f"d1.direction.{name}", 0.7, layer=layer)
        for name in names
        for layer in (2, 3)
        if (name, layer) != ("C5", 3)
    ]
    table = build_d1(rows, ORDER)
    assert table is not None
    assert heads_of(table) == ["strategy", "d1.auroc", "C1", "C5", "LDA", "C1_centred", "own"]
    assert table.note == "C5: layer 2 only"


def test_a_cell_that_failed_as_a_whole_says_why_in_every_column() -> None:
    rows = [row("A1_mean", "d1.auroc", 0.9), row("A1_mean", "d1.direction.C1", 0.7)]
    rows += [row("S2_gradient", "d1.auroc", None, status="not_implemented"), row("L5_keyword", "d1.auroc", 0.6)]
    table = build_d1(rows, ORDER)
    assert table is not None
    assert texts_of(table) == [
        ["A1_mean", "0.900", "0.700"],
        ["L5_keyword", "0.600", ""],
        ["S2_gradient", "not_implemented", "not_implemented"],
    ]
    assert build_d1([row("A1_mean", "d2.scp", 0.9)], ORDER) is None


def test_published_means_stand_beside_the_corrected_in_their_own_order() -> None:
    ours = [row(name, "d1.auroc", 0.9 - 0.1 * number) for number, name in enumerate(ORDER)]
    ours += [row("A1_mean", "d3.ld", 0.5), row("A1_mean", "d3.ld", None, concept="hedging", status="no_effect")]
    theirs = [
        row("A1_mean", "d1.auroc", 0.4),
        row("L5_keyword", "d1.auroc", 0.6),
        row("P1_last_token", "d1.auroc", 0.5),
    ]
    theirs += [row("S2_gradient", "d1.auroc", None, status="not_implemented"), row("A1_mean", "d2.scp", 1.0)]
    theirs += [by_scp("A1_mean", 30.0, "d2.scp_1"), by_scp("A1_mean", 0.25, "d2.scp")]
    table = build_published(theirs, ours, ORDER)
    assert table is not None
    assert [(column.group, column.head) for column in table.columns[1:]] == [
        ("d1.auroc", "published"),
        ("d1.auroc", "corrected"),
        ("d3.ld", "published (d2.scp)"),  # d2.scp: no corrected rows
        ("d3.ld", "published (d2.scp_1)"),
        ("d3.ld", "corrected"),
    ]
    cells = {name: texts for name, *texts in texts_of(table)}
    assert list(cells) == ["L5_keyword", "P1_last_token", "A1_mean", "S2_gradient"]
    assert cells["A1_mean"] == ["0.400", "0.900", "0.250", "30.000", "0.500 (1/2)"]
    assert cells["S2_gradient"] == ["not_implemented", "0.600", "", "", ""]
    assert build_published([], ours, ORDER) is None


def test_layers_that_agree_are_no_replicates() -> None:
    values = {"A1_mean": (0.8, 0.9), "P1_last_token": (0.5, 0.6)}
    rows = [row(name, "d1.auroc", value, layer=layer) for name in values for layer, value in enumerate(values[name])]
    (part,) = layer_parts(rows)
    (table,) = part.blocks
    # Mean squares of strategies .09, of layers .01, of the rest 0: .09 / (.09 + 2 * .01 / 2).
    assert texts_of(table) == [["contrast", "0.900", "2", "0, 1"]]
    assert "Their mean is 0.900" in part.note and "Layers are not replicates" in part.note
    assert list(layer_parts(rows[:1])) == []
