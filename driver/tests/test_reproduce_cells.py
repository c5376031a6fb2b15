"""reproduce: the run that makes the cells of a table, planned offline; tables of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driver.tests.conftest import Driver
from typer.testing import CliRunner, Result

from poolbench.errors import ConfigError, UnknownModelError
from poolbench_driver.cli import app
from poolbench_driver.suites.poolbench.official import official_table

SOURCE = """\
table: small
title: A small table
models:
  - {name: demo, label: demo, preset: demo, best_layer: 2, layers: [2]}
columns:
  - {id: D1_auroc, definition: AUROC, differs: "", low: 0, high: 1, ours: {published: d1.auroc, corrected: d1.auroc}}
strategies:
  - {id: A1_mean, ours: A1_mean}
  - {id: own, ours: null, differs: we have none}
"""
CELLS = "strategy,concept,D1_auroc\nA1_mean,contrast,0.9\nA1_mean,hedging,\nown,contrast,0.6\nown,hedging,0.7\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "table"
    folder.mkdir()
    (folder / "source.yaml").write_text(SOURCE)
    (folder / "cells-demo.csv").write_text(CELLS)
    return folder


def reproduce(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *arguments], standalone_mode=False)


def test_a_table_of_ones_own_is_read(table: Path) -> None:
    found = official_table(str(table))
    assert found.concepts == ("contrast", "hedging") and found.values["demo", "A1_mean", "hedging", "D1_auroc"] is None


@pytest.mark.parametrize(
    ("source", "cells", "said"),
    [
        (SOURCE, None, "FileNotFoundError"),
        (SOURCE.replace("columns:", "columms:"), CELLS, "columns"),
        (SOURCE.replace("label: demo", "colour: red"), CELLS, "colour"),
        (SOURCE, CELLS.replace("0.9", "high"), "high"),
        ("a: [", CELLS, "ParserError"),
        ("", CELLS, "NoneType"),
    ],
)
def test_a_malformed_table_is_one_line(table: Path, source: str, cells: str | None, said: str) -> None:
    (table / "source.yaml").write_text(source)
    (table / "cells-demo.csv").unlink()
    if cells is not None:
        (table / "cells-demo.csv").write_text(cells)
    with pytest.raises(ConfigError, match=said):
        official_table(str(table))


def test_models_of_a_table_are_presets(table: Path) -> None:
    (table / "source.yaml").write_text(SOURCE.replace("preset: demo", "preset: demos"))
    with pytest.raises(UnknownModelError, match="did you mean demo"):
        official_table(str(table))


def dry_run(*arguments: str) -> dict[str, Any]:
    answer = reproduce(*arguments, "--dry-run", "--display", "json")
    assert answer.return_value == 0, answer.exception
    return json.loads(answer.output)


def test_a_dry_run_needs_nothing_and_says_what_a_run_needs(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STATE", str(table / "none"))
    monkeypatch.setenv("HF_HUB_CACHE", str(table / "none"))
    small = dry_run("--table", str(table), "--model", "demo", "--corpus", "planted", "--set", "limit=60")
    assert [need["what"] for need in small["needs"]] == ["cluster"]
    again = f"poolbench-driver reproduce --table {table} --model demo --corpus planted --set limit=60"
    assert small["commands"] == [again]
    card = dry_run("--model", "llama-3.1-8b")
    missing = " | ".join(need["what"] for need in card["needs"] if not need["found"])
    for what in ("cluster", "weights of meta-llama/Llama-3.1-8B", "corpus in corpora/published", "GPU on this machine"):
        assert what in missing
    assert "bert-base-uncased" not in missing and "18 strategies, 17 concepts steers nothing" in " ".join(card["notes"])
    scored = dry_run("--model", "llama-3.1-8b", "--scorers", "published")
    assert "18 strategies, 17 concepts steers 36,720 texts" in " ".join(scored["notes"])
    assert "nips234678/poolbench-bert-scorers" in " | ".join(need["what"] for need in scored["needs"])


def test_a_run_of_the_cells_says_what_is_missing_before_it_starts(
    driver: Driver, environment: dict[str, str], tmp_path: Path
) -> None:
    offline = {**environment, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    asked = ("--model", "llama-3.1-8b", "--output", str(tmp_path / "runs"))
    done = driver(offline, "reproduce", *asked, "--corpus", "planted", "--display", "json")
    assert done.returncode == 1 and not (tmp_path / "runs").exists()
    missing = [need for need in json.loads(done.stdout)["needs"] if need["stops"] and not need["found"]]
    assert any("bert-base-uncased" in need["what"] and "--scorers minilm" in need["instead"] for need in missing)
    without = driver(offline, "reproduce", *asked, "--corpus", str(tmp_path / "none"))
    assert without.returncode == 1 and "nothing was started" in without.stdout


@pytest.mark.parametrize("option", [("--start",), ("--dry-run",), ("--set", "limit=60"), ("--scorers", "minilm")])
def test_a_finished_run_takes_no_settings(option: tuple[str, ...]) -> None:
    answer = reproduce("--run", "latest", *option)
    assert isinstance(answer.exception, ConfigError) and "--run compares a finished run" in str(answer.exception)
