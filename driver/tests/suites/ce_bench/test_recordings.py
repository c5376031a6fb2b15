"""Recorded results of CE-Bench: both forms, every definition by hand, and mistakes with their file."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from poolbench.errors import InputError
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.suites.ce_bench.recordings import Entry, architecture_of, board, width_of

CONFIG = {
    "d_sae": 16384,
    "model_name": "gemma-2-2b",
    "hook_name": "blocks.12.hook_resid_post",
    "architecture": "jumprelu",
}


def result(
    contrastive: Any = 40.0, independent: Any = 80.0, interpretability: Any = 64.0, **fields: Any
) -> dict[str, Any]:
    scores = {
        "contrastive_score_mean": contrastive,
        "independent_score_mean": independent,
        "interpretability_score_mean": interpretability,
    }
    return {**scores, "total_rows": 500, "sae_config": CONFIG, **fields}


def put(folder: Path, path: str, content: Any) -> Path:
    file = folder / path / "results.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def test_the_first_form_is_rebuilt_under_every_definition(tmp_path: Path) -> None:
    put(tmp_path, "scope-res/layer_12/width_16k/average_l0_40", result(contrastive_dataset="GulkoA/stories-v2"))
    (row,) = SUITES.get("ce-bench").load().recorded(tmp_path).rows
    published = {"contrastive": 40.0, "independent": 80.0, "interpretability": 64.0}
    assert row == {
        "path": "scope-res/layer_12/width_16k/average_l0_40",
        "rows": 500,
        "d": 16384,
        "layer": 12,
        "site": "residual",
        **published,
        "l0": 40.0,
        "definitions": {
            "published": published,
            "sqrt_d": {"contrastive": 0.3125, "independent": 0.625, "interpretability": 0.5},
            "sum": {**published, "interpretability": 120.0},
            "sparsity_aware": {**published, "interpretability": 110.0},
        },
    }


def test_the_second_form_has_means_and_counts_of_outliers_too(tmp_path: Path) -> None:
    second = [{"max": value, "mean": 0.5, "outlier_count_1_both": 7.0} for value in (40.0, 80.0, 64.0)]
    put(tmp_path, "second", result(*second))
    put(tmp_path, "first", result())
    one, other = SUITES.get("ce-bench").load().recorded(tmp_path).rows
    assert {one["path"], other["path"]} == {"first", "second"}
    (rebuilt,) = [row["definitions"] for row in (one, other) if row["path"] == "second"]
    assert rebuilt["mean"] == {"contrastive": 0.5, "independent": 0.5, "interpretability": 0.5}
    assert rebuilt["outlier_count_1_both"]["independent"] == 7.0
    assert [(row["contrastive"], row["independent"], row["interpretability"]) for row in (one, other)] == [
        (40, 80, 64)
    ] * 2


def test_a_width_that_is_not_recorded_comes_from_the_path_or_is_null(tmp_path: Path) -> None:
    put(tmp_path, "release_topk_width-2pow12_date-1/trainer_0", result(sae_config={}))
    put(tmp_path, "nameless", result(sae_config=None))
    recorded = SUITES.get("ce-bench").load().recorded(tmp_path)
    by_path = {row["path"]: row for row in recorded.rows}
    assert by_path["release_topk_width-2pow12_date-1/trainer_0"]["d"] == 4096
    assert by_path["nameless"]["d"] is None and "width" in by_path["nameless"]["note"]
    assert set(by_path["nameless"]["definitions"]["sqrt_d"].values()) == {None}
    assert "unknown width" in recorded.markdown


def test_no_line_of_the_board_mixes_layers(tmp_path: Path) -> None:
    """A release with three layers of one width has three lines, in the order of the layers."""
    for layer, score in ((2, 30.0), (12, 50.0), (0, 10.0)):
        for l0 in (20, 40):
            config = {**CONFIG, "hook_name": f"blocks.{layer}.hook_resid_post"}
            values = result(score, score, score + l0 / 10, sae_config=config)
            put(tmp_path, f"scope-res/layer_{layer}/width_16k/average_l0_{l0}", values)
    unnamed = {name: value for name, value in CONFIG.items() if name != "hook_name"}
    put(tmp_path, "scope-res/layer_3/width_16k/average_l0_9", result(sae_config=unnamed))
    board = SUITES.get("ce-bench").load().recorded(tmp_path).markdown
    lines = [line.split(" | ") for line in board.splitlines() if line.startswith("| scope-res | ")]
    assert [(hook, count, mean) for _, hook, _, _, _, count, _, _, mean, _ in lines] == [
        ("blocks.0.hook_resid_post", "2", "13.0"),
        ("blocks.2.hook_resid_post", "2", "33.0"),
        ("layer_3", "1", "64.0"),
        ("blocks.12.hook_resid_post", "2", "53.0"),
    ]


def test_boards_by_layer_and_site_compare_equal_widths_alone(tmp_path: Path) -> None:
    """Of 16,384 features there are two layers of the residual stream, and three sites of layer 12."""
    for path, hook, score in (
        ("scope-res/layer_12/width_16k/average_l0_20", "blocks.12.hook_resid_post", 50.0),
        ("scope-res/layer_12/width_16k/average_l0_60", "blocks.12.hook_resid_post", 60.0),
        ("scope-res/layer_5/width_16k/average_l0_30", "blocks.5.hook_resid_post", 70.0),
        ("scope-mlp/layer_12/width_16k/average_l0_9", "blocks.12.hook_mlp_out", 40.0),
        ("scope-att/layer_12/width_16k/average_l0_9", None, 80.0),
        ("scope-res/layer_20/width_65k/average_l0_9", "blocks.20.hook_resid_post", 90.0),
        ("scope-res/layer_12/other_l0_9", "blocks.12.hook_resid_post", 99.0),
    ):
        config = {**CONFIG, "hook_name": hook, "d_sae": 65536 if "65k" in path else 16384}
        if "other" in path:
            del config["d_sae"]
        put(tmp_path, path, result(score, score, score, sae_config=config))
    recorded = SUITES.get("ce-bench").load().recorded(tmp_path)
    board = recorded.markdown
    by_layer = board.partition("### By layer")[2].partition("### By site")[0]
    by_site = board.partition("### By site")[2].partition("| autoencoder |")[0]

    def lines(text: str) -> list[list[str]]:
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "| gemma" in line]
        return [row[3:9] + row[-2:] for row in rows]

    assert lines(by_layer) == [
        ["residual", "16384", "5", "1", "1", "30", "70.0", "0.547"],
        ["residual", "16384", "12", "2", "2", "40", "55.0", "0.430"],
    ]
    assert lines(by_site) == [
        ["12", "16384", "attention", "1", "1", "9", "80.0", "0.625"],
        ["12", "16384", "mlp", "3", "1", "9", "40.0", "0.312"],
        ["12", "16384", "residual", "2", "2", "40", "55.0", "0.430"],
    ]
    sites = {row["path"].partition("/")[0]: (row["layer"], row["site"]) for row in recorded.rows if row["d"] == 16384}
    assert sites == {"scope-res": (5, "residual"), "scope-mlp": (12, "mlp"), "scope-att": (12, "attention")}
    put(tmp_path / "alone", "scope-res/layer_12/width_16k/average_l0_20", result())
    assert "### By" not in SUITES.get("ce-bench").load().recorded(tmp_path / "alone").markdown


@pytest.mark.parametrize(
    ("text", "width"),
    [("width_16k/average_l0_9", 2**14), ("width_65k", 2**16), ("width_131k", 2**17), ("width_524k", 2**19),
     ("width_1m", 2**20), ("topk_width-2pow12_date-1109", 4096), ("4k", 4096), ("2304", 2304), ("layer_12", None),
     ("width_0k", None), ("width_x", None)],
)  # fmt: skip
def test_widths_are_read_from_names(text: str, width: int | None) -> None:
    assert width_of(text) == width


def test_architectures_are_read_from_names() -> None:
    names = ("matryoshka_batch_top_k_width", "batch_top_k", "sweep_topk_ctx128", "sweep_panneal", "jumprelu", "none")
    assert [architecture_of(name) for name in names] == [
        "matryoshka", "batch_top_k", "top_k", "p_anneal", "jump_relu", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{\n}}", "line 2: not JSON"),
        ("[1]", "the file must be a JSON object, got list"),
        ({"total_rows": 5}, "no contrastive_score_mean; is it a result of CE-Bench?"),
        (result(contrastive="high"), "contrastive_score_mean (max) must be a finite number, got 'high'"),
        (result(contrastive=math.nan), "contrastive_score_mean (max) must be a finite number"),
        (result(contrastive={"mean": 1.0}), "contrastive_score_mean has no max"),
        (result(total_rows=0), "total_rows must be a number of rows from 1, got '0'"),
        (result(sae_config=[1]), "sae_config must be a JSON object, got list"),
        (result(sae_config={"d_sae": "wide"}), "sae_config.d_sae must be a width from 1, got 'wide'"),
    ],
)
def test_a_dead_file_is_named_and_the_rest_goes_on(tmp_path: Path, content: Any, expected: str) -> None:
    file = put(tmp_path, "dead", content)
    with pytest.raises(InputError) as caught:
        SUITES.get("ce-bench").load().recorded(tmp_path)
    assert expected in str(caught.value) and str(file) in str(caught.value)
    put(tmp_path, "alive", result())
    recorded = SUITES.get("ce-bench").load().recorded(tmp_path)
    assert [row["path"] for row in recorded.rows] == ["alive"]
    assert any(expected in note for note in recorded.notes) and expected in recorded.markdown


def test_folders_without_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no results\.json"):
        SUITES.get("ce-bench").load().recorded(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        SUITES.get("ce-bench").load().recorded(tmp_path / "none")


def test_the_board_orders_what_shares_its_stories() -> None:
    figures = {name: {"max": 1.0} for name in ("contrastive", "independent", "interpretability")}
    entries = [Entry(stories, 80, 4096, None, figures, stories, "model", "hook", "gated") for stories in ("v2", "v1")]
    assert [row["path"] for row in board(entries)] == ["v1", "v2"]
