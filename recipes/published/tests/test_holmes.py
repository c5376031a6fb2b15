"""Claims of the paper on Holmes, and the order of models on a share of the training data, by tables made by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from driver.tests.suites.holmes.test_recordings import BY_HAND, written
from recipes.published.__main__ import main
from recipes.published.holmes import DECODERS, ENCODERS, Rates, claims_markdown

from poolbench_driver.suites.holmes.recordings import TYPES, board, read_scores


def test_claims_say_what_holds_under_each_definition(tmp_path: Path) -> None:
    """Encoders win everywhere but in reasoning, where decoders do; two sets of each type have own phenomena."""
    rng = np.random.default_rng(0)
    models = [*ENCODERS[:2], *DECODERS[:2]]
    sets = [(f"{kind}-{number}", kind) for kind in TYPES for number in range(4)]
    lines = []
    for name, kind in sets:
        good = np.array([0.9, 0.8, 0.3, 0.2] if kind != "reasoning" else [0.2, 0.3, 0.8, 0.9]) + rng.uniform(0, 0.05, 4)
        lines.append(",".join([name, kind, name, *(f"{value:.4f}" for value in good)]))
    text = "\n".join([",".join(["probing dataset", "linguistic subfield", "linguistic phenomena", *models]), *lines])
    scores = read_scores(written(tmp_path, text))
    said = claims_markdown(scores)
    (reasoning,) = [line for line in said.splitlines() if "in reasoning (4 phenomena)" in line]
    (syntax,) = [line for line in said.splitlines() if "in syntax (4 phenomena)" in line]
    assert reasoning.count("fails") == 3 and syntax.count("holds") == 3
    assert "instruction tuning" not in said and "Not checkable: Selectivity" in said
    pairs = Rates(scores, "pairs").of("syntax")[0]
    np.testing.assert_allclose(pairs, [100, 200 / 3, 100 / 3, 0])


def test_rates_of_a_type_keep_the_scale_of_all_sets(tmp_path: Path) -> None:
    scores = read_scores(written(tmp_path, BY_HAND))
    for kind in scores.kinds:
        found = Rates(scores, "column").of(kind)[0]
        by_model = {row["entrant"]: row["by_type"][kind]["column_overall"] for row in board(scores)}
        np.testing.assert_allclose(found, [by_model[model] for model in scores.models])


def test_a_share_that_reverses_two_models_moves_each_by_one_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 12 models in order, the first two swap on the share: 65 of 66 pairs agree, so tau is 64 / 66."""
    models = [f"M{number}" for number in range(12)]
    swapped = [1, 0, *range(2, 12)]

    def rows(order: Sequence[int], *sets: str) -> str:
        values = ",".join(f".{number + 10}" for number in order)
        return "\n".join([",".join(["probing dataset", *models]), *(f"{name},{values}" for name in sets)])

    whole, share = tmp_path / "whole.csv", tmp_path / "share.csv"
    whole.write_text(rows(range(12), "dep", "upos", "xpos"))
    share.write_text(rows(swapped, "dep", "upos"))
    assert main(["flash", str(whole), str(share)]) == 0
    printed = capsys.readouterr().out
    error = 1.96 * np.std([1, -1, *[0] * 10], ddof=1) / np.sqrt(12)
    assert f"| all (3 and 2) | pairs | {64 / 66:.2f} | 1.00 | {error:.2f} |" in printed
    assert f"| common (2 and 2) | row | {64 / 66:.2f} | 1.00 |" in printed
    share.write_text("probing dataset,M1,M2\ndep,.1,.2\n")
    assert main(["flash", str(whole), str(share)]) == 2 and main(["flash"]) == 2 and main([]) == 2
    printed = capsys.readouterr().err
    assert "the tables share 2 models and 1 sets" in printed and "ce-bench FOLDER" in printed
