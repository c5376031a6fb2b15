"""The published tables as they ship: whole, and with a counterpart of each name."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from poolbench.concepts import CONCEPTS
from poolbench.config import MODEL_PRESETS
from poolbench.errors import ConfigError, UnknownModelError, UnknownNameError
from poolbench.pooling.registry import STRATEGIES
from poolbench_driver.comparison.published import RunRows, compare_cells
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.metrics import all_metrics
from poolbench_driver.models import model_folder
from poolbench_driver.suites.poolbench.presets import other_settings
from poolbench_driver.suites.poolbench.published_table import published_table, settings_of_run

TABLE = published_table()
MODEL = TABLE.model("llama-3.1-8b")

#: Llama's A1 on D1, from the card's specification and not from the files.
A1_OF_LLAMA = {
    "academic_tone": 0.99978, "bureaucratic": 0.99998, "causation": 0.40803, "code_docs": 0.99907,
    "conditionality": 0.4162, "contrast": 0.4334, "deference": 0.88864, "depression": 1, "frustration": 0.87358,
    "hedging": 0.41649, "imdb_sentiment": 0.87819, "legal_formality": 0.42362, "narrative": 0.99994,
    "negation_density": 0.42596, "numerical_precision": 0.97683, "planning": 1, "toxicity": 0.90467,
}  # fmt: skip


def test_the_table_is_whole() -> None:
    assert (len(TABLE.models), len(TABLE.strategies), len(TABLE.concepts), len(TABLE.columns)) == (3, 19, 17, 6)
    assert len(TABLE.cells) == 3 * 19 * 17 * 6 == len(TABLE.values)
    assert sum(cell.value is not None for cell in TABLE.cells) == 4904
    assert TABLE.source["commit"] == "283209c2e53c0395217b2cbcbec2c1fd6d4c7f8a"


def test_known_cells() -> None:
    found = {concept: TABLE.values["llama3_8b", "A1_mean", concept, "D1_auroc"] for concept in TABLE.concepts}
    assert found == A1_OF_LLAMA
    assert TABLE.values["gemma2_9b", "W4_hierarchical", "legal_formality", "D3_LD"] == 3.39278
    assert TABLE.values["mistral_7b", "P2_first_token", "causation", "D2_scp_c"] is None


def test_the_agreement_of_layers_has_the_means_that_the_source_states() -> None:
    stated = {"llama3_8b": 0.87728, "gemma2_9b": 0.85857, "mistral_7b": 0.92173}
    found = {model: [TABLE.layer_agreement[model, concept] for concept in TABLE.concepts] for model in stated}
    assert {model: round(fmean(values), 5) for model, values in found.items()} == stated
    assert (min(found["llama3_8b"]), max(found["llama3_8b"])) == (0.34148, 0.99789)


def test_counterparts_exist() -> None:
    assert set(TABLE.concepts) == {concept.id for concept in CONCEPTS.all()}
    assert [strategy.id for strategy in TABLE.strategies if strategy.ours is None] == ["L2_dependency_rel"]
    for strategy in TABLE.strategies:
        assert strategy.ours is None or STRATEGIES.get(strategy.ours)
    for column in TABLE.columns:
        assert set(column.ours) <= {"published", "corrected"} and set(column.ours.values()) <= set(all_metrics())
    for model in TABLE.models:
        assert model_folder(model.preset) == model.name and model.best_layer in model.layers
        assert TABLE.model(MODEL_PRESETS[model.preset].source) == TABLE.model(model.label) == model


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="official"):
        published_table("offical")
    with pytest.raises(UnknownModelError, match=r"llama-3\.1-8b"):
        TABLE.model("llama-3.1-9b")


def test_a_checkout_adds_the_other_constructions(tmp_path: Path) -> None:
    file = tmp_path / "results/auroc/mistral_7b/C4_repe/layer_16/mistral_7b_auroc_results.json"
    file.parent.mkdir(parents=True)
    cell = {"auroc": 0.6883530612244898, "ci_low": 0.6577, "ci_high": 0.7177, "construction_method": "C4_repe"}
    file.write_text(json.dumps({"numerical_precision_W4_hierarchical": cell}), "utf-8")
    table = published_table(str(tmp_path))
    assert [column.id for column in table.columns[6:]] == [f"D1_auroc_C{number}" for number in (2, 3, 4, 5)]
    assert [column.ours for column in table.columns[7:9]] == [{"corrected": f"d1.direction.C{n}"} for n in (3, 4)]
    assert table.values["mistral_7b", "W4_hierarchical", "numerical_precision", "D1_auroc_C4"] == cell["auroc"]
    assert table.values["mistral_7b", "A1_mean", "numerical_precision", "D1_auroc_C4"] is None
    assert table.cells[: len(TABLE.cells)] == TABLE.cells
    run = RunRows(
        [{"protocol": "corrected", "metric": "d1.direction.C4", "strategy": "W4_hierarchical:remainder=true"}
         | {"concept": "numerical_precision", "layer": 16, "value": 0.7, "ci_low": 0.68, "ci_high": 0.72}
         | {"alpha_unit": None, "opening_set": None, "direction": "C4"}],
        None,
    )  # fmt: skip
    compared = compare_cells(table, table.model("mistral_7b"), run, ["D1_auroc_C4"])
    (ours,) = [cell for cell in compared if cell.difference is not None]
    assert ours.strategy == "W4_hierarchical" and ours.inside and ours.difference == pytest.approx(0.7 - cell["auroc"])
    assert {cell.reason for cell in compared if cell.concept == "hedging" and cell.our_strategy} >= {
        "the run has no concept hedging"
    }


def test_the_settings_are_those_of_the_card_at_the_layer_of_the_table(tmp_path: Path) -> None:
    card = load_run_config(None, {"preset": "card", "model": MODEL.preset})
    ours = load_run_config(None, settings_of_run(TABLE, MODEL, str(tmp_path)))
    assert (ours.budget, ours.steering, ours.protocol) == (card.budget, card.steering, card.protocol)
    assert (ours.layers, other_settings(ours)) == ((MODEL.best_layer,), [])
    (tmp_path / "hedging").mkdir()  # concepts are those of the corpus
    assert settings_of_run(TABLE, MODEL, str(tmp_path))["concepts"] == ["hedging"]


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
