"""The rules of the ranks once more, written as they are read and applied to random tables with every kind of null."""

from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from poolbench_driver.pages.boards.ranking import rank_board

STATUSES = ["ok"] * 12 + [
    "failed",
    "too_few",
    "collapsed",
    "no_coverage",
    "class_dependent_coverage",
    "not_implemented",
]
WORST = {"collapsed", "no_coverage", "class_dependent_coverage"}
UNITS = [("m", 1), ("m", 2), ("n", 1)]


def random_table(rng):
    rows = []
    for concept in range(rng.integers(1, 6)):
        for strategy in "ABCDE"[: rng.integers(2, 6)]:
            status = str(rng.choice(STATUSES))
            for model, layer in UNITS:
                own = status if rng.random() < 0.8 else "ok"
                if rng.random() < 0.05:
                    continue  # no row at all
                if rng.random() < 0.01:
                    own = "scorer_invalid"
                rows.append(
                    {"metric": "d1.auroc", "concept": f"c{concept}", "strategy": strategy, "model": model,
                     "layer": layer, "status": own, "value": float(rng.integers(0, 4)) if own == "ok" else None}
                )  # fmt: skip
    return rows


def value_of(rows, units):
    """One strategy in one concept: None is a missing cell, "worst" the shared last place."""
    if {(row["model"], row["layer"]) for row in rows} != units:
        return None
    if any(row["status"] not in WORST | {"ok"} for row in rows):
        return None
    if any(row["status"] in WORST for row in rows):
        return "worst"
    models = {row["model"] for row in rows}
    return fmean(fmean(row["value"] for row in rows if row["model"] == model) for model in models)


def ranks_of_block(values):
    """1 is best; equal values share the mean of their places, and so do all that are worst."""
    goodness = {name: -np.inf if value == "worst" else value for name, value in values.items()}
    return {
        name: 1 + sum(o > own for o in goodness.values()) + (sum(o == own for o in goodness.values()) - 1) / 2
        for name, own in goodness.items()
    }


def expected_blocks(rows):
    blocks = {}
    for concept in sorted({row["concept"] for row in rows}):
        own = [row for row in rows if row["concept"] == concept]
        if any(row["status"] == "scorer_invalid" for row in own):
            continue
        own = [row for row in own if row["status"] != "not_implemented"]
        units = {(row["model"], row["layer"]) for row in own}
        found = {s: value_of([r for r in own if r["strategy"] == s], units) for s in {r["strategy"] for r in own}}
        values = {name: value for name, value in found.items() if value is not None}
        if len(values) >= 2 and set(values.values()) != {"worst"}:
            blocks[concept] = ranks_of_block(values)
    return blocks


@pytest.mark.parametrize("seed", range(60))
def test_random_tables_are_ranked_as_the_rules_say(seed):
    rows = random_table(np.random.default_rng(seed))
    blocks = expected_blocks(rows)
    board = rank_board(rows, "d1.auroc")
    assert (board is None) == (not blocks)
    if board is None:
        return
    assert board.blocks == tuple(blocks)
    for name, measure in zip(board.entrants, board.measures, strict=True):
        ranks = [block[name] for block in blocks.values() if name in block]
        assert (measure.value, measure.n) == ((pytest.approx(fmean(ranks)), len(ranks)) if ranks else (None, 0))
    everybody = {name for block in blocks.values() for name in block}
    whole = [[block[name] for name in sorted(everybody)] for block in blocks.values() if set(block) == everybody]
    complete = rank_board(rows, "d1.auroc", complete=True)
    assert (complete is None) == (not whole)
    assert board.summary["num_blocks"] == len(whole)
    if len(whole) >= 2 and len(everybody) >= 3 and any(len(set(row)) > 1 for row in whole):
        oracle = stats.friedmanchisquare(*np.array(whole).T)
        assert board.summary["friedman_p"] == pytest.approx(oracle.pvalue)
        assert complete.summary["friedman_p"] == board.summary["friedman_p"]
