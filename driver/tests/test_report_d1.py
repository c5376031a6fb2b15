"""D1 in detail and the published definitions on the page, from rows made by hand and from a finished run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.page_reader import heads_of, part_of, rendered, tables_of, texts_of

from poolbench.contracts.results import result_table
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.page import Prose
from poolbench_driver.pages.boards.rank_parts import rank_parts
from poolbench_driver.pages.boards.ranks import build_ranks
from poolbench_driver.pages.text import ending_of
from poolbench_driver.records import RunFolder
from poolbench_driver.report import page_of
from poolbench_driver.suites.poolbench.report.board import build_d1, build_published

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
    assert build_published(None, ours, ORDER) is build_published([], ours, ORDER) is None


@pytest.fixture(scope="module")
def finished(steered_in: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, pa.Table]]:
    made = steered_in(tmp_path_factory.mktemp("store"), strategies=("A1_mean", "L5_keyword"), metrics=["d1"])
    made.probes(made.plan.probes.concepts["contrast"])
    tables = assemble(made.plan, made.artifacts, {}, "run-1")
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), made.plan.scope.config)
    for name, table in tables.items():
        folder.write_table(name, table)
    folder.write_failures([])
    return folder, tables


def test_an_old_run_has_a_page_without_the_published_part(finished: tuple[RunFolder, Any]) -> None:
    page = page_of(finished[0])
    html, markdown = rendered(page)
    assert '<details id="d1"><summary>D1 in detail' in html and "## D1 in detail" in markdown
    assert any(problem.text.startswith("contrast: ") for problem in page.problems)
    (nulls,) = tables_of(*part_of(page, "nulls").blocks)
    assert texts_of(nulls)[0][:3] == ["d1", "failed", "2"] and texts_of(nulls)[0][3].startswith("artifact ")
    assert "published" not in [part.anchor for part in page.parts] and "## Published" not in markdown


def test_a_run_of_d1_shows_nothing_of_d2_and_d3(finished: tuple[RunFolder, Any]) -> None:
    page = page_of(finished[0])
    assert heads_of(page.board)[:2] == ["strategy", "d1.auroc"]
    html, markdown = rendered(page)
    for text in (html[html.index("<body>") :], markdown, ending_of(page)):
        assert not re.findall(r"\b[Dd][23]\b|\bgain|scorer|curve", text, re.I)


def test_published_rows_are_shown_and_never_ranked(finished: tuple[RunFolder, dict[str, pa.Table]]) -> None:
    folder, tables = finished
    before = page_of(folder)
    rows = [r for r in tables["results"].to_pylist() if r["metric"] == "d1.auroc"]
    figures = {"A1_mean": 0.4, "L5_keyword": 0.6}
    rows = [{**r, "protocol": "published", "value": figures[r["strategy"]]} for r in rows]
    folder.write_table("published", result_table(rows))
    try:
        page = page_of(folder)
    finally:
        folder.file("published.parquet").unlink()
    part = part_of(page, "published")
    assert "never ranked" in part.heading and "Published D2" not in part.note
    (table,) = tables_of(*part.blocks)
    # By the published figures, not by ours.
    assert texts_of(table) == [["L5_keyword", "0.600", "0.800"], ["A1_mean", "0.400", "0.900"]]
    assert replace(page, parts=[other for other in page.parts if other != part]) == before  # nothing else changes


def test_one_concept_has_no_column_of_ranks(finished: tuple[RunFolder, Any]) -> None:
    page = page_of(finished[0])
    html, markdown = rendered(page)
    why = "One concept has no board of ranks, because strategies are compared over concepts."
    for text in (html[html.index("<h1>") :], markdown, ending_of(page)):
        assert not any(word in text for word in ("mean rank", "Nemenyi", "p (Holm)", "critical difference"))
        assert "One concept is too few to tell strategies apart." in text
    assert markdown.count(why) == html.count(why) == 1
    assert ending_of(page).splitlines()[3].split()[:2] == ["strategy", "d1.auroc"]


@pytest.mark.parametrize(("num_concepts", "num_p"), [(4, 0), (6, 2), (9, 3)])
def test_a_page_has_the_columns_that_so_many_concepts_can_fill(num_concepts: int, num_p: int) -> None:
    shared = {"metric": "d1.auroc", "model": "m", "layer": 1, "params": "{}", "status": "ok"}
    rows = [
        {**shared, "strategy": name, "concept": f"c{n}", "value": 0.9 - 0.1 * place - 0.01 * n}
        for n in range(num_concepts)
        for place, name in enumerate(("A1_mean", "A2_max", "L5_keyword"))
    ]
    of = json.dumps({"of": "d1.auroc", "board": "all"})
    rows.append({**shared, "strategy": "A1_mean", "concept": "", "value": 1.0, "metric": "rank.mean", "params": of})
    (part,) = rank_parts(build_ranks(rows, "d1.auroc"))
    tables = tables_of(*part.blocks)
    for table in tables:
        assert {len(line.cells) for line in table.lines} == {len(table.columns)}
    tests, standings, pairs, *_ = (len(table.columns) for table in tables)
    more = num_p + (num_p > 0)  # tie groups, and Nemenyi's p of a pair
    assert (tests, standings, pairs) == (8, 6 + more, 6 + more)
    limits = [block.text for block in part.blocks if isinstance(block, Prose)]
    assert any("With 4 concepts no two strategies can be distinguished" in text for text in limits) == (num_p == 0)
    assert ("after Holm" in part.note) == (num_p == 2) and ("p (Holm)" in heads_of(tables[1])) == (num_p == 3)
