"""D1 in detail and the published definitions on the page, from rows made by hand and from a finished run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from poolbench_driver.suites.poolbench.report.markdown import summary
from poolbench_driver.suites.poolbench.report.views import build_view

from poolbench.contracts.results import result_table
from poolbench_driver.assemble import assemble
from poolbench_driver.pages.boards.ranks import build_ranks
from poolbench_driver.records import RunFolder
from poolbench_driver.report import leaderboard_markdown, write_page, write_report
from poolbench_driver.suites.poolbench.report import report_of
from poolbench_driver.suites.poolbench.report.means import build_d1, build_published

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
    assert table.heads == ["d1.auroc", "d1.auroc_nested", "d1.seed_spread"]
    assert table.lines == [("A1_mean", ["0.850 (2/3)", "0.950", "0.0008"])]


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
    assert table.heads == ["d1.auroc", "C1", "C5", "LDA", "C1_centred", "own"]
    assert table.notes == ["C5: layer 2 only"]


def test_a_cell_that_failed_as_a_whole_says_why_in_every_column() -> None:
    rows = [row("A1_mean", "d1.auroc", 0.9), row("A1_mean", "d1.direction.C1", 0.7)]
    rows += [row("S2_gradient", "d1.auroc", None, status="not_implemented"), row("L5_keyword", "d1.auroc", 0.6)]
    table = build_d1(rows, ORDER)
    assert table is not None
    assert table.lines == [
        ("A1_mean", ["0.900", "0.700"]),
        ("L5_keyword", ["0.600", ""]),
        ("S2_gradient", ["not_implemented", "not_implemented"]),
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
    assert table.groups == [
        ("d1.auroc", ["published", "corrected"]),
        ("d3.ld", ["published (d2.scp)", "published (d2.scp_1)", "corrected"]),  # d2.scp: no corrected rows
    ]
    assert [name for name, _ in table.lines] == ["L5_keyword", "P1_last_token", "A1_mean", "S2_gradient"]
    cells = dict(table.lines)
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


def test_an_old_run_has_a_report_without_the_published_section(finished: tuple[RunFolder, Any]) -> None:
    folder = finished[0]
    page, markdown = write_report(folder).read_text("utf-8"), leaderboard_markdown(folder)
    assert '<details id="d1"><summary>D1 in detail</summary>' in page
    assert "## D1 in detail" in markdown
    assert "\n## Problems\n\n- contrast: " in markdown
    assert "| d1 | failed | 2 | artifact " in markdown[markdown.index("## Nulls") :]
    assert 'id="published"' not in page and "#published" not in page and "## Published" not in markdown


def test_a_run_of_d1_shows_nothing_of_d2_and_d3(finished: tuple[RunFolder, Any]) -> None:
    folder = finished[0]
    view = build_view(folder.tables)
    assert view.columns[0] == "d1.auroc"
    page = write_page(folder, report_of(view)).read_text("utf-8")
    page = page[page.index("<body>") : page.index('<h2 id="made">')]  # below are all settings of the run
    for text in (page, leaderboard_markdown(folder), summary(view)):
        assert not re.findall(r"\b[Dd][23]\b|\bgain|scorer|curve", text, re.I)


def test_published_rows_are_shown_and_never_ranked(finished: tuple[RunFolder, dict[str, pa.Table]]) -> None:
    folder, tables = finished
    before = leaderboard_markdown(folder)
    rows = [r for r in tables["results"].to_pylist() if r["metric"] == "d1.auroc"]
    figures = {"A1_mean": 0.4, "L5_keyword": 0.6}
    rows = [{**r, "protocol": "published", "value": figures[r["strategy"]]} for r in rows]
    folder.write_table("published", result_table(rows))
    try:
        page, markdown = write_report(folder).read_text("utf-8"), leaderboard_markdown(folder)
    finally:
        folder.file("published.parquet").unlink()
    section = page[page.index('<h2 id="published">') : page.index('<h2 id="checks">')]
    assert "never ranked" in section and "Published D2" not in section
    assert section.index("L5_keyword") < section.index("A1_mean")  # by the published figures, not by ours
    start = markdown.index("\n## Published definitions")
    end = markdown.index("\n## Problems")
    assert "| L5_keyword | 0.600 | 0.800 |\n| A1_mean | 0.400 | 0.900 |" in markdown[start:end]
    assert markdown[:start] + markdown[end:] == before  # nothing else changes


def widths_of(table: str) -> tuple[int, set[int]]:
    """The number of columns of a table's head, and of its lines."""
    cells = r'<t[dh](?:>| [^>]*?(?:colspan="(\d+)")?[^>]*>)'
    lines = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    head, *rest = (sum(int(span or 1) for span in re.findall(cells, line)) for line in lines)
    return head, set(rest)


def test_one_concept_has_no_column_of_ranks(finished: tuple[RunFolder, Any]) -> None:
    folder = finished[0]
    page, markdown, said = (
        write_report(folder).read_text("utf-8"),
        leaderboard_markdown(folder),
        build_view(folder.tables),
    )
    why = "One concept has no board of ranks, because strategies are compared over concepts."
    for text in (page[page.index("<h1>") :], markdown, summary(said)):
        assert not any(word in text for word in ("mean rank", "Nemenyi", "p (Holm)", "critical difference"))
        assert (why if text != summary(said) else "One concept is too few to tell strategies apart.") in text
    assert markdown.count(why) == 1
    assert summary(said).splitlines()[3].split() == ["strategy", "d1.auroc"]


@pytest.mark.parametrize(("num_concepts", "num_p"), [(4, 0), (6, 2), (9, 3)])
def test_a_page_has_the_columns_that_so_many_concepts_can_fill(
    finished: tuple[RunFolder, Any], num_concepts: int, num_p: int
) -> None:
    shared = {"metric": "d1.auroc", "model": "m", "layer": 1, "params": "{}", "status": "ok"}
    rows = [
        {**shared, "strategy": name, "concept": f"c{n}", "value": 0.9 - 0.1 * place - 0.01 * n}
        for n in range(num_concepts)
        for place, name in enumerate(("A1_mean", "A2_max", "L5_keyword"))
    ]
    of = json.dumps({"of": "d1.auroc", "board": "all"})
    rows.append({**shared, "strategy": "A1_mean", "concept": "", "value": 1.0, "metric": "rank.mean", "params": of})
    view = replace(build_view(finished[0].tables), ranks=build_ranks(rows, "d1.auroc"))
    page = write_page(finished[0], report_of(view)).read_text("utf-8")
    ranks = page[page.index('<h2 id="ranks">') : page.index('<h2 id="maps">')]
    tests, standings, pairs, *_ = map(widths_of, re.findall(r"<table.*?</table>", ranks, re.DOTALL))
    more = num_p + (num_p > 0)  # tie groups, and Nemenyi's p of a pair
    assert (tests, standings, pairs) == ((8, {8}), (6 + more, {6 + more}), (6 + more, {6 + more}))
    assert ("With 4 concepts no two strategies can be distinguished" in ranks) == (num_p == 0)
    assert ("after Holm" in ranks) == (num_p == 2) and ("p (Holm)" in ranks) == (num_p == 3)
