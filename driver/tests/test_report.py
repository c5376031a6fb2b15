"""The page of a finished run of D1: its parts, and what a run of one concept does not show."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.page_reader import heads_of, part_of, rendered, tables_of, texts_of
from driver.tests.run_folders import assembled
from tests.waiting import PATIENCE_S

from poolbench_driver.pages.text import ending_of, json_of
from poolbench_driver.records import Run
from poolbench_driver.records.folder import write_table
from poolbench_driver.report.making import page_of, write_report
from poolbench_driver.report.reading import read_page
from poolbench_driver.results import result_table


@pytest.fixture(scope="module")
def finished(steered_in: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, pa.Table]]:
    made = steered_in(tmp_path_factory.mktemp("store"), strategies=("A1_mean", "L5_keyword"), metrics=["d1"])
    made.probes(made.plan.probes.concepts["contrast"])
    folder = assembled(made, tmp_path_factory.mktemp("runs"), state=None)
    return folder, folder.tables


def test_an_old_run_has_a_page_without_the_published_part(finished: tuple[Run, Any]) -> None:
    page = page_of(finished[0])
    html, markdown = rendered(page)
    assert '<details id="d1"><summary>D1 in detail' in html and "## D1 in detail" in markdown
    assert any(problem.text.startswith("contrast: ") for problem in page.problems)
    (nulls,) = tables_of(*part_of(page, "nulls").blocks)
    assert texts_of(nulls)[0][:3] == ["d1", "failed", "2"] and texts_of(nulls)[0][3].startswith("artifact ")
    assert "published" not in [part.anchor for part in page.parts] and "## Published" not in markdown


def test_a_run_of_d1_shows_nothing_of_d2_and_d3(finished: tuple[Run, Any]) -> None:
    page = page_of(finished[0])
    assert heads_of(page.board)[:2] == ["strategy", "d1.auroc"]
    html, markdown = rendered(page)
    for text in (html[html.index("<body>") :], markdown, ending_of(page)):
        assert not re.findall(r"\b[Dd][23]\b|\bgain|scorer|curve", text, re.I)


def test_published_rows_are_shown_and_never_ranked(finished: tuple[Run, dict[str, pa.Table]]) -> None:
    folder, tables = finished
    before = page_of(folder)
    rows = [r for r in tables["results"].to_pylist() if r["metric"] == "d1.auroc"]
    figures = {"A1_mean": 0.4, "L5_keyword": 0.6}
    rows = [{**r, "protocol": "published", "value": figures[r["strategy"]]} for r in rows]
    write_table(folder, "published", result_table(rows))
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


def test_one_concept_has_no_column_of_ranks(finished: tuple[Run, Any]) -> None:
    page = page_of(finished[0])
    html, markdown = rendered(page)
    why = "One concept has no board of ranks, because strategies are compared over concepts."
    for text in (html[html.index("<h1>") :], markdown, ending_of(page)):
        assert not any(word in text for word in ("mean rank", "Nemenyi", "p (Holm)", "critical difference"))
        assert "One concept is too few to tell strategies apart." in text
    assert markdown.count(why) == html.count(why) == 1
    assert ending_of(page).splitlines()[3].split()[:2] == ["strategy", "d1.auroc"]


def test_a_page_is_read_as_it_was_written_and_made_again_where_a_table_is_newer_or_it_is_damaged(
    finished: tuple[Run, dict[str, pa.Table]],
) -> None:
    folder, _ = finished
    view = write_report(folder).with_name("view.json")
    made = view.read_text("utf-8")
    assert json_of(read_page(folder)) == made
    view.write_text(made.replace(folder.id, "read-from-the-file"), "utf-8")
    assert "read-from-the-file" in json_of(read_page(folder))
    os.utime(view, ns=(0, 0))
    assert json_of(read_page(folder)) == made
    for damaged in ("{", json.dumps(json.loads(made) | {"version": 2})):
        view.write_text(damaged, "utf-8")
        assert json_of(read_page(folder)) == made


def test_what_a_run_says_is_read_without_what_measures_and_draws(finished: tuple[Run, dict[str, pa.Table]]) -> None:
    folder, _ = finished
    write_report(folder)
    code = f"import sys, poolbench_driver as pb; run = pb.load({str(folder.path)!r}); print(run.answer.text, run.board)"
    heavy = "{'numpy', 'pyarrow', 'vl_convert', 'httpx', 'poolbench.steps', 'poolbench_driver.evidence'}"
    command = [sys.executable, "-c", f"{code}; assert not {heavy} & set(sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "A1_mean" in done.stdout
