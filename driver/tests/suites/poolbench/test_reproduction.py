"""reproduce: cells of a published table beside a run made by hand, and the run that makes them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver.tests.conftest import Driver
from typer.testing import CliRunner, Result

from poolbench.contracts.results import result_table
from poolbench.errors import ConfigError, UnknownModelError, UnknownNameError
from poolbench_driver.assemble import assemble
from poolbench_driver.cli import app
from poolbench_driver.cli.reproduce import num_steered_texts, published_settings
from poolbench_driver.config import SCORERS
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import Run, create_run, write_table
from poolbench_driver.suites.poolbench.presets import other_settings
from poolbench_driver.suites.poolbench.published_table import published_table
from poolbench_driver.suites.poolbench.reproduction.cells import ComparedCell, RunRows, compare_cells

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


def finished(output: Path, **settings: Any) -> Run:
    """A run folder as a finished run leaves it, of the rows above."""
    chosen = {**published_settings(TABLE, MODEL, "corpora/published"), **settings}
    folder = create_run(output, load_run_config(None, chosen))
    write_table(folder, "results", result_table(CORRECTED))
    write_table(folder, "published", result_table(PUBLISHED))
    return folder


def reproduce(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *arguments], standalone_mode=False)


def test_a_run_is_found_by_its_model_and_compared(tmp_path: Path) -> None:
    finished(tmp_path, model="demo")
    folder = finished(tmp_path)
    answer = reproduce("--model", "llama-3.1-8b", "--output", str(tmp_path), "--display", "json")
    found = json.loads(answer.output)
    assert (answer.return_value, found["run"], found["settings"]) == (0, folder.id, [])
    assert len(found["cells"]) == 11 * 19 * 17
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


def test_the_settings_are_those_of_the_card_at_the_layer_of_the_table(tmp_path: Path) -> None:
    card = load_run_config(None, {"preset": "card", "model": MODEL.preset})
    ours = load_run_config(None, published_settings(TABLE, MODEL, str(tmp_path)))
    assert (ours.budget, ours.steering, ours.protocol) == (card.budget, card.steering, card.protocol)
    assert (ours.layers, other_settings(ours)) == ((MODEL.best_layer,), [])
    (tmp_path / "hedging").mkdir()  # concepts are those of the corpus
    assert published_settings(TABLE, MODEL, str(tmp_path))["concepts"] == ["hedging"]


def test_what_a_run_does_otherwise_is_named() -> None:
    given = {"preset": "demo", "protocol": "published", "model": "demo", "include_bos": False}
    apart = {each.name: each.ours for each in other_settings(load_run_config(None, given))}
    assert apart.keys() >= {"budget.num_train", "budget.max_tokens", "scorer_base", "include_bos", "corpus.source"}
    assert not apart.keys() & {"budget.strengths", "budget.opening_set", "sinks"}
    theirs = load_run_config(None, {"preset": "card", "model": MODEL.preset, **SCORERS["published"]})
    assert other_settings(theirs) == []  # the reference's classifiers are the reference's
    others = {**SCORERS["published"], "scorer_base": "somebody/classifiers"}
    apart = other_settings(load_run_config(None, {"preset": "card", "model": MODEL.preset, **others}))
    assert [each.name for each in apart] == ["scorer_base", "scorer_mode"]


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


def test_a_table_of_ones_own_is_read(table: Path) -> None:
    found = published_table(str(table))
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
        (SOURCE.replace("preset: demo", "preset: demos"), CELLS, "did you mean demo"),
    ],
)
def test_a_malformed_table_is_one_line(table: Path, source: str, cells: str | None, said: str) -> None:
    (table / "source.yaml").write_text(source)
    (table / "cells-demo.csv").unlink()
    if cells is not None:
        (table / "cells-demo.csv").write_text(cells)
    with pytest.raises((ConfigError, UnknownModelError), match=said):
        published_table(str(table))


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
    assert without.returncode == 1 and "nothing was started" in without.stderr


@pytest.mark.parametrize("option", [("--start",), ("--dry-run",), ("--set", "limit=60"), ("--scorers", "minilm")])
def test_a_finished_run_takes_no_settings(option: tuple[str, ...]) -> None:
    answer = reproduce("--run", "latest", *option)
    assert isinstance(answer.exception, ConfigError) and "--run compares a finished run" in str(answer.exception)
