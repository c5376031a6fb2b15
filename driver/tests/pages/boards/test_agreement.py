"""How stable the order of strategies is over layers."""

import numpy as np
import pytest
from scipy import stats

from poolbench_driver.pages.boards.agreement import layer_stability


def grid(values_LNK):
    return [
        {"strategy": f"S{k}", "concept": f"c{n}", "layer": layer, "metric": "d1.auroc"}
        | {"value": float(value), "status": "ok"}
        for layer, values_NK in enumerate(values_LNK)
        for n, row in enumerate(values_NK)
        for k, value in enumerate(row)
    ]


def test_layer_stability_is_spearman_of_the_mean_ranks():
    values = np.random.default_rng(0).normal(size=(3, 9, 6)) + 0.7 * np.arange(6)
    found = layer_stability(grid(values), "d1.auroc")
    assert [m.params["layers"] for m in found] == [[0, 1], [0, 2], [1, 2]]
    ranks = [np.mean([stats.rankdata(-row) for row in layer], axis=0) for layer in values]
    for measure in found:
        first, second = measure.params["layers"]
        assert measure.value == pytest.approx(stats.spearmanr(ranks[first], ranks[second]).statistic)
        assert measure.ci_low <= measure.value <= measure.ci_high
        assert (measure.n, measure.num_groups) == (6, 9)


def test_equal_and_reversed_orders_are_1_and_minus_1():
    values = np.random.default_rng(1).permuted(np.tile(np.arange(5.0), (4, 1)), axis=1)
    values += np.arange(5) * 10
    assert layer_stability(grid([values, values]), "d1.auroc")[0].value == pytest.approx(1)
    assert layer_stability(grid([values, -values]), "d1.auroc")[0].value == pytest.approx(-1)


def test_collapsed_strategies_rank_worst_and_missing_ones_are_left_out():
    rows = grid(np.tile(np.arange(4.0), (2, 3, 1)))
    for row in rows:
        if row["strategy"] == "S3":
            row.update(value=None, status="collapsed")
        if row["strategy"] == "S2" and row["layer"] == 1:
            row.update(value=None, status="failed")
    (found,) = layer_stability(rows, "d1.auroc")
    assert (found.value, found.n) == (pytest.approx(1), 3)


def test_two_strategies_are_too_few_and_one_layer_has_no_pair():
    (found,) = layer_stability(grid(np.zeros((2, 3, 2))), "d1.auroc")
    assert found.status == "too_few"
    assert layer_stability(grid(np.zeros((1, 3, 5))), "d1.auroc") == []
    (flat,) = layer_stability(grid(np.zeros((2, 3, 4))), "d1.auroc")
    assert flat.status == "collapsed"
