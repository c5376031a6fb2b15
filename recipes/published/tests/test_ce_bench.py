"""Claims about sparse autoencoders, and agreement with SAEBench, by recorded results made by hand."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from driver.tests.suites.ce_bench.test_recorded import CONFIG, put, result
from recipes.published.ce_bench import claims_markdown
from recipes.published.saebench import agreement

from poolbench_driver.suites.ce_bench.recorded import Entry, read_tree

FOLDER = os.environ.get("POOLBENCH_REAL_TEXT", "")
needs_table = pytest.mark.skipif(
    not (Path(FOLDER) / "cebench_48_saes.csv").is_file() or not FOLDER,
    reason="POOLBENCH_REAL_TEXT names no folder with cebench_48_saes.csv",
)


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


TABLE = "contrastive,independent,joint,l0,ground_truth\n10,20,1,40,.9\n12,28,1,80,.8\n30,20,1,120,.7\n"


def test_the_agreement_with_saebench_is_counted_in_pairs(tmp_path: Path) -> None:
    """Sums are 30, 40 and 50, minus a quarter of L0 20, 20 and 20; SAEBench has them in falling order."""
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    lines = [
        line.strip("| ").split(" | ") for line in agreement(file).splitlines() if "L0 |" in line or "dent |" in line
    ]
    assert [(share, tied) for _, share, _, tied, *_ in lines] == [
        ("0.00", "100.00"),
        ("0.00", "0.00"),
        ("100.00", "0.00"),
    ]
    assert "3 autoencoders, 3 pairs" in agreement(file) and "width is missing in 3 lines" in agreement(file)


def test_correlations_with_saebench_agree_with_scipy(tmp_path: Path) -> None:
    """Intervals are those of a loop over the resamples."""
    from scipy import stats

    from poolbench.statistics.bootstrap import bootstrap_counts

    rng = np.random.default_rng(1)
    columns = rng.uniform(10, 90, (12, 4)).round(1)
    columns[:, 3] = (columns[:, 0] + rng.normal(0, 20, 12)).round(1)
    text = "contrastive,independent,l0,ground_truth\n" + "\n".join(",".join(map(str, row)) for row in columns)
    (tmp_path / "table.csv").write_text(text)
    (line,) = (line for line in agreement(tmp_path / "table.csv").splitlines() if line.startswith("| -L0 |"))
    scores, truth = -columns[:, 2], columns[:, 3]
    for cell, statistic in zip(line.strip("| ").split(" | ")[-2:], (stats.spearmanr, stats.pearsonr), strict=True):
        drawn = [
            statistic(np.repeat(scores, count), np.repeat(truth, count)).statistic
            for count in bootstrap_counts(12, 1000, 0)
            if (count > 0).sum() > 1
        ]
        low, high = np.percentile(drawn, [2.5, 97.5])
        assert cell == f"{statistic(scores, truth).statistic:.2f} ({low:.2f} to {high:.2f})"


def test_layers_and_sites_are_compared_at_equal_width(tmp_path: Path) -> None:
    for layer, score in ((0, 40.0), (5, 60.0), (9, 50.0)):
        for l0 in (20, 40):
            config = {**CONFIG, "hook_name": f"blocks.{layer}.hook_resid_post"}
            put(tmp_path, f"res/layer_{layer}/l0_{l0}", result(1.0, 1.0, score + l0 / 20, sae_config=config))
    config = {**CONFIG, "hook_name": "blocks.5.hook_mlp_out"}
    put(tmp_path, "mlp/layer_5/l0_20", result(1.0, 1.0, 70.0, sae_config=config))
    said = claims_markdown(read_tree(tmp_path).entries)
    # Layers 0 0 5 5 9 9 with scores 41 42 61 62 51 52: ranks 1.5 1.5 3.5 3.5 5.5 5.5 and 1 2 5 6 3 4.
    assert "gemma-2-2b residual, d = 16384, unnamed stories, 500 rows: Spearman 0.48, Pearson 0.55, 3 layers, 6" in said
    assert "Order of sites, gemma-2-2b layer 5, d = 16384, unnamed stories, 500 rows: mlp 70.0, residual 61.5" in said


@needs_table
def test_the_recorded_48_autoencoders_agree_as_published() -> None:
    text = agreement(Path(FOLDER) / "cebench_48_saes.csv")
    for line in ("contrastive + independent - 0.25 x L0 | 77.30", "contrastive + independent | 70.12", "-L0 | 70.92"):
        assert f"| {line} |" in text


def test_intervals_of_exponents_agree_with_a_loop(tmp_path: Path) -> None:
    """Least squares within one stratum, resampled by numpy."""
    from recipes.published.ce_bench import _exponent

    from poolbench.statistics.bootstrap import bootstrap_counts

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
