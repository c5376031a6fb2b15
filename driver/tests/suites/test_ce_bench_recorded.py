"""Recorded results of CE-Bench: both forms, every definition by hand, mistakes with their file, and claims."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolbench.errors import InputError
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.suites.ce_bench.claims import claims_markdown
from poolbench_driver.suites.ce_bench.recorded import Entry, architecture_of, board, read_tree, width_of

FOLDER = os.environ.get("POOLBENCH_REAL_TEXT", "")
needs_table = pytest.mark.skipif(
    not (Path(FOLDER) / "cebench_48_saes.csv").is_file() or not FOLDER,
    reason="POOLBENCH_REAL_TEXT names no folder with cebench_48_saes.csv",
)
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
    (row,) = SUITES.get("ce-bench").recorded(tmp_path).rows
    published = {"contrastive": 40.0, "independent": 80.0, "interpretability": 64.0}
    assert row == {
        "path": "scope-res/layer_12/width_16k/average_l0_40",
        "rows": 500,
        "d": 16384,
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
    one, other = SUITES.get("ce-bench").recorded(tmp_path).rows
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
    recorded = SUITES.get("ce-bench").recorded(tmp_path)
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
    board = SUITES.get("ce-bench").recorded(tmp_path).markdown
    lines = [line.split(" | ") for line in board.splitlines() if line.startswith("| scope-res | ")]
    assert [(hook, count, mean) for _, hook, _, _, _, count, _, _, mean, _ in lines] == [
        ("blocks.0.hook_resid_post", "2", "13.0"),
        ("blocks.2.hook_resid_post", "2", "33.0"),
        ("layer_3", "1", "64.0"),
        ("blocks.12.hook_resid_post", "2", "53.0"),
    ]


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
        SUITES.get("ce-bench").recorded(tmp_path)
    assert expected in str(caught.value) and str(file) in str(caught.value)
    put(tmp_path, "alive", result())
    recorded = SUITES.get("ce-bench").recorded(tmp_path)
    assert [row["path"] for row in recorded.rows] == ["alive"]
    assert any(expected in note for note in recorded.notes) and expected in recorded.markdown


def test_folders_without_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no results\.json"):
        SUITES.get("ce-bench").recorded(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        SUITES.get("ce-bench").recorded(tmp_path / "none")


def test_a_score_that_grows_with_the_root_of_the_width_is_not_higher_after_division(tmp_path: Path) -> None:
    """Scores are sqrt(d) / L0^0.1, so the exponents are 0.5, 0 and -0.1."""
    for exponent in (12, 14, 16):
        for l0 in (20, 40, 80):
            score = 2 ** (exponent / 2) / l0**0.1
            values = result(score, score, score, sae_config={**CONFIG, "d_sae": 2**exponent})
            put(tmp_path, f"release/layer_1/width_{exponent}/average_l0_{l0}", values)
    wide, divided, sparse = (
        line for line in claims_markdown(read_tree(tmp_path).entries).splitlines() if "score higher" in line
    )
    assert "| +0.50 (+0.4" in wide and "| +0.00 (" in divided and "| -0.10 (-0.10 to -0.10), n = 9 |" in sparse


def test_architectures_are_ordered_within_one_set_of_stories(tmp_path: Path) -> None:
    means = {"topk": (90.0, 60.0), "gated": (80.0, 70.0), "p_anneal": (70.0, 50.0)}
    for name, values in means.items():
        for place, stories in enumerate(("v2", "v3")):
            for trainer in range(3):
                score = values[place] + trainer - 1
                fields = {"contrastive_dataset": f"G/stories-{stories}"}
                put(tmp_path, f"{stories}/sweep_{name}/trainer_{trainer}", result(score, score, score, **fields))
    said = claims_markdown(read_tree(tmp_path).entries)
    assert "stories-v2, 500 rows: top_k 90.0, gated 80.0, p_anneal 70.0. The first leads the second by +10.0" in said
    assert "stories-v3, 500 rows: gated 70.0, top_k 60.0, p_anneal 50.0" in said
    assert "Kendall's tau 0.33, 3 architectures" in said and "Qwen: not checkable" in said


def test_only_what_shares_its_stories_is_compared() -> None:
    def entry(stories: str, d: int) -> Entry:
        figures = {name: {"max": 1.0} for name in ("contrastive", "independent", "interpretability")}
        return Entry(f"{stories}-{d}", 80, d, None, figures, stories, "model", "hook", "gated")

    said = claims_markdown([entry("v1", 4096), entry("v2", 16384)])
    assert said.count("no comparison") == 9 and "Order of architectures: not checkable" in said
    assert [row["path"] for row in board([entry("v2", 4096), entry("v1", 4096)])] == ["v1-4096", "v2-4096"]


TABLE = "contrastive,independent,joint,l0,ground_truth\n10,20,1,40,.9\n12,28,1,80,.8\n30,20,1,120,.7\n"


def test_the_agreement_with_saebench_is_counted_in_pairs(tmp_path: Path) -> None:
    """Sums are 30, 40 and 50, minus a quarter of L0 20, 20 and 20; SAEBench has them in falling order."""
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    recorded = SUITES.get("ce-bench").recorded(file)
    assert [(row["agreement"], row["tied"], row["pairs"]) for row in recorded.rows] == [
        (0, 100, 3),
        (0, 0, 3),
        (100, 0, 3),
    ]
    assert "| -L0 | 100.00 |" in recorded.markdown and "width is missing in 3 lines" in recorded.markdown


def test_widths_and_architectures_of_a_table_are_compared_too(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    names = ("sae_variant", "topk_width-2pow16", "gated_width-2pow14", "p_anneal_width-2pow12")
    lines = [f"{name},{line}" for name, line in zip(names, TABLE.splitlines(), strict=True)]
    file.write_text("\n".join(lines).replace("contrastive,", "contrastive_score,").replace(",l0,", ",sparsity,"))
    recorded = SUITES.get("ce-bench").recorded(file)
    assert recorded.rows[-1]["score"] == "log2 of the width" and recorded.rows[-1]["agreement"] == 100
    assert "- -L0: Kendall's tau 1.00; top_k -40, gated -80, p_anneal -120" in recorded.markdown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TABLE.replace("l0", "L"), "line 1: no column l0 or sparsity"),
        (TABLE.replace("80,.8", ",.8"), "line 3: l0 is missing"),
        (TABLE.replace("80,.8", "many,.8"), "line 3, column 'l0': 'many' is not a number"),
        ("\n".join(TABLE.splitlines()[:2]), "1 autoencoder; at least two"),
    ],
)
def test_mistakes_in_a_table_name_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        SUITES.get("ce-bench").recorded(tmp_path / "table.csv")
    assert expected in str(caught.value) and "table.csv" in str(caught.value)


@needs_table
def test_the_recorded_48_autoencoders_agree_as_published() -> None:
    rows = SUITES.get("ce-bench").recorded(Path(FOLDER) / "cebench_48_saes.csv").rows
    found = {row["score"]: round(row["agreement"], 2) for row in rows}
    assert found == {"contrastive + independent - 0.25 x L0": 77.3, "contrastive + independent": 70.12, "-L0": 70.92}


def test_the_command_notes_dead_files_beside_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "alive", result())
    put(tmp_path, "dead", "{")
    leaderboard(suite="ce-bench", table=tmp_path, as_json=True)
    printed = capsys.readouterr()
    assert [row["path"] for row in json.loads(printed.out)] == ["alive"]
    assert "dead/results.json, line 1: not JSON" in printed.err


def test_intervals_of_exponents_agree_with_a_loop(tmp_path: Path) -> None:
    """Least squares within one stratum, resampled by numpy."""
    from poolbench.statistics import bootstrap_counts
    from poolbench_driver.suites.ce_bench.claims import _exponent

    rng = np.random.default_rng(0)
    widths = np.array([12, 12, 13, 14, 14, 16])
    scores = 2 ** (0.4 * widths) * rng.uniform(0.8, 1.2, 6)
    entries = [
        Entry(str(place), 1, int(2**width), None, {"contrastive": {"max": float(score)}, "independent": {"max": 1.0},
              "interpretability": {"max": 1.0}}, "", "", "", "")
        for place, (width, score) in enumerate(zip(widths, scores, strict=True))
    ]  # fmt: skip
    x, y = widths * math.log(2), np.log(scores)
    counts = bootstrap_counts(6, 1000, 0)
    slopes = [
        np.polyfit(np.repeat(x, count), np.repeat(y, count), 1)[0]
        for count in counts
        if np.unique(x[count > 0]).size > 1
    ]
    low, high = np.percentile(slopes, [2.5, 97.5])
    said = _exponent(
        [(2.0**width, "", entry) for width, entry in zip(widths, entries, strict=True)], "published", "contrastive"
    )
    assert said == f"{np.polyfit(x, y, 1)[0]:+.2f} ({low:+.2f} to {high:+.2f}), n = 6"
