"""reproduce, and compare with a published table: a run made by hand, and the run that makes the cells."""

import json
from pathlib import Path
from typing import Any

import pytest
from driver.tests.comparison.test_published import CORRECTED, MODEL, PUBLISHED, TABLE
from driver.tests.conftest import invoke
from driver.tests.suites.poolbench.test_published_table import CELLS, SOURCE
from typer.testing import Result

from poolbench.errors import ConfigError, PoolbenchError, UnknownNameError
from poolbench_driver.cli.reproduce import num_steered_texts
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.results import result_table
from poolbench_driver.suites.poolbench.published_table import settings_of_run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "table"
    folder.mkdir()
    (folder / "source.yaml").write_text(SOURCE)
    (folder / "cells-demo.csv").write_text(CELLS)
    return folder


def finished(output: Path, **settings: Any) -> Run:
    """A run folder as a finished run leaves it, of the rows above."""
    chosen = {**settings_of_run(TABLE, MODEL, "corpora/published"), **settings}
    folder = create_run(output, load_run_config(None, chosen))
    write_table(folder, "results", result_table(CORRECTED))
    write_table(folder, "published", result_table(PUBLISHED))
    return folder


def reproduce(*arguments: str) -> Result:
    return invoke("reproduce", *arguments)


def test_a_run_is_found_by_its_model_and_compared(tmp_path: Path) -> None:
    finished(tmp_path, model="demo")
    folder = finished(tmp_path)
    answer = reproduce("--model", "llama-3.1-8b", "--output", str(tmp_path), "--display", "json")
    found = json.loads(answer.output)
    assert (answer.return_value, found["run"], found["settings"]) == (0, folder.id, [])
    assert len(found["cells"]) == 11 * 19 * 17 + 2 * 17
    assert sum(cell["difference"] is not None for cell in found["cells"]) == 6


def test_columns_display_and_settings_that_differ(tmp_path: Path) -> None:
    folder = finished(tmp_path, include_bos=False, corpus={"source": "planted"})
    options = ("--run", str(folder.path), "--column", "D1_auroc")
    plain = reproduce(*options, "--display", "plain").output.splitlines()
    assert sum(line.startswith("D1_auroc\tA1_mean\tA1_mean\t") for line in plain) == 3
    assert "include_bos is False; the published run has True" in plain
    assert "corpus.source is planted; the published run has the published corpus" in plain
    everything = reproduce(*options, "--display", "plain", "--all").output
    assert everything.count("\nD1_auroc\t") == 2 * 19 * 17 + 2
    assert "theirs" in reproduce(*options, "--display", "rich").output


def test_nothing_to_compare_is_a_failure(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    write_table(folder, "results", result_table([{**CORRECTED[0], "layer": 15}]))
    write_table(folder, "published", result_table([{**PUBLISHED[0], "layer": 15}]))
    assert reproduce("--run", folder.id, "--output", str(tmp_path)).return_value == 1


def test_without_a_run_it_says_what_is_missing_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "published.yaml"
    answer = reproduce("--model", "gemma-2-9b", "--output", str(tmp_path), "--settings", str(file), "--display", "json")
    found = json.loads(answer.output)
    assert answer.return_value == 1 and found["commands"][-1] == "poolbench-driver reproduce --model gemma-2-9b"
    whats = [need["what"] for need in found["needs"]]
    assert "cluster" in whats and any(what.startswith("weights of google/gemma-2-9b") for what in whats)
    assert any("nothing was started" in note for note in found["notes"])
    config = load_run_config(file, {})
    assert (config.model, config.layers, config.steering_layer) == ("gemma-2-9b", (28,), 28)
    assert (len(config.strategies or ()), len(config.concepts)) == (18, 17)
    assert num_steered_texts(config) == 18 * 17 * 12 * 10
    assert "18 strategies, 17 concepts steers nothing" in " ".join(found["notes"])
    assert any(note.startswith("left out, d2, d3: no texts to train the scorers") for note in found["notes"])


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((), ConfigError, "or --run"),
        (("--table", "ours"), UnknownNameError, "official"),
        (("--model", "llama-3.1-8b", "--column", "D1"), UnknownNameError, "D1_auroc"),
        (("--model", "demo"), ConfigError, r"llama-3\.1-8b"),
        (("--run", "latest", "--display", "none"), ConfigError, "plain"),
        (("--settings", "x.yaml"), ConfigError, "--model"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], error: type[Exception], said: str) -> None:
    answer = reproduce(*arguments)
    assert isinstance(answer.exception, error)
    with pytest.raises(error, match=said):
        raise answer.exception


def test_a_run_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path, model="demo")
    assert isinstance(reproduce("--run", str(folder.path)).exception, ConfigError)
    own = finished(tmp_path)
    answer = reproduce("--run", str(own.path), "--model", "gemma-2-9b")
    assert isinstance(answer.exception, ConfigError) and "llama-3.1-8b" in str(answer.exception)


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


@pytest.mark.parametrize("option", [("--start",), ("--dry-run",), ("--set", "limit=60"), ("--scorers", "minilm")])
def test_a_finished_run_takes_no_settings(option: tuple[str, ...]) -> None:
    answer = reproduce("--run", "latest", *option)
    assert isinstance(answer.exception, ConfigError) and "--run compares a finished run" in str(answer.exception)


def compare(*arguments: str) -> Result:
    return invoke("compare", *arguments)


def test_compare_with_a_table_is_the_same(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    for more in ((), ("--all",)):
        for form in (("--json",), ("--csv",), ()):
            asked = compare(str(folder.path), "official:llama-3.1-8b", *form, *more)
            same = reproduce("--run", str(folder.path), *form, *more)
            assert asked.output == same.output and asked.return_value == same.return_value == 0
    options = ("--metric", "d3.ld", "--format", "markdown")
    text = compare(str(folder.path), "official:llama-3.1-8b", *options).output
    assert text.startswith(f"# {folder.id} against ") and "| D3_LD | A1_mean |" in text and "D1_auroc" not in text
    assert compare(str(folder.path), "official:llama-3.1-8b", "--check").return_value == 1


@pytest.mark.parametrize(
    ("second", "options", "said"),
    [
        ("official:gemma-2-9b", (), "measured llama-3.1-8b, not gemma-2-9b"),
        ("official:gemma", (), "unknown model 'gemma'"),
        ("official:llama-3.1-8b", ("--metric", "d1.auc"), "did you mean d1.auroc"),
        ("official:llama-3.1-8b", ("--across", "model"), "--across and --seed are for two runs"),
    ],
)
def test_what_cannot_be_compared_with_a_table_is_refused(
    tmp_path: Path, second: str, options: tuple[str, ...], said: str
) -> None:
    answer = compare(str(finished(tmp_path).path), second, *options)
    assert isinstance(answer.exception, PoolbenchError)
    assert said in str(answer.exception)
