"""How stable the order of strategies is over layers."""

import numpy as np
import pytest
from scipy import stats

from poolbench_driver.pages.boards.agreement import layer_agreements, layer_stability
from poolbench_driver.statistics.correlation import intraclass


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


#: D1 of academic_tone in Llama-3.1-8B at layers 16, 24 and 31, as the published results have it.
PUBLISHED = np.array([
    [0.9947605224963716, 0.9990752643582833, 0.9970018660584699],  # P1_last_token
    [0.5056500103669915, 0.48877462160481033, 0.489288824383164],  # P2_first_token
    [0.8535807588637777, 0.8858625336927223, 0.8386979058677172],  # P3_CLS
    [0.9999709724238026, 0.999977192618702, 0.9997802197802198],  # A1_mean
    [0.9952197802197802, 0.993721749948165, 0.8840058055152396],  # A2_max
    [0.9999709724238026, 0.9999813394153017, 0.9997760729836201],  # A3_random
    [0.9999688990255028, 0.9999709724238026, 0.9999025502799087],  # A4_norm
    [0.9982459050383579, 0.9997470454074229, 0.9998320547377152],  # W1_mean_last_4
    [0.9985278872071325, 0.9996931370516275, 0.9997947335683185],  # W2_mean_last_8
    [0.9991644204851753, 0.9997926601700187, 0.9998838896952105],  # W3_mean_last_16
    [0.9999626788306034, 0.999989633008501, 0.999966825627203],  # W4_hierarchical
    [0.9997905867717188, 0.9989010989010989, 0.9996848434584283],  # S1_attention_weighted
    [0.5791094754302302, 0.6243665768194071, 0.5151834957495336],  # S2_SIF
    [0.9999295044578064, 0.9992701637984657, 0.9998507153224134],  # S3_ITI_exact
    [0.9999523118391043, 0.9999730458221023, 0.9999813394153017],  # L1_POS_filtered
    [0.9999709724238026, 0.999977192618702, 0.9997802197802198],  # L2_dependency_rel
    [0.9996413020941324, 0.9996848434584283, 0.9985071532241343],  # L3_named_entity
    [0.9999564586357039, 0.9999709724238026, 0.9999460916442048],  # L4_subword_root
    [0.9999170640680074, 0.9999730458221024, 0.9999792660170019],  # L5_SVO
])  # fmt: skip


def test_the_intraclass_correlation_is_that_of_its_authors_and_of_the_source():
    example = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    assert round(intraclass(np.array(example, float)), 2) == 0.29  # Shrout and Fleiss 1979, table 4
    assert intraclass(PUBLISHED) == pytest.approx(0.981546328747838, abs=1e-9)
    # By hand, of two targets and two raters: 0 1, 2 5. Mean squares 9, 4 and 1, so (9 - 1) / (9 + 1 + 2 * 3 / 2).
    assert intraclass(np.array([[0.0, 1], [2, 5]])) == pytest.approx(8 / 13)


def test_the_intraclass_correlation_of_equal_shifted_and_reversed_raters():
    values = np.random.default_rng(2).normal(size=(7, 1))
    assert intraclass(np.hstack([values, values, values])) == pytest.approx(1)
    assert 0 < intraclass(np.hstack([values, values + 1])) < 0.9  # absolute agreement: a shift counts
    assert intraclass(np.hstack([values, -values])) < 0
    shuffled = np.random.default_rng(3).permutation(np.hstack([values, values + 1, 2 * values]), axis=1)
    assert intraclass(shuffled) == pytest.approx(intraclass(shuffled[::-1] * 3 + 5))
    assert np.isnan([intraclass(np.ones((3, 2))), intraclass(np.ones((1, 2))), intraclass(np.ones((3, 1)))]).all()


def test_layers_agree_over_the_strategies_that_have_a_value_at_each():
    values = np.random.default_rng(4).normal(size=(3, 2, 5))
    rows = grid(values)
    rows[0].update(value=None, status="collapsed")
    first, second = layer_agreements(rows, "d1.auroc")
    assert (first.concept, first.layers, first.num_strategies, second.num_strategies) == ("c0", (0, 1, 2), 4, 5)
    assert first.value == pytest.approx(intraclass(values[:, 0, 1:].T))
    assert second.value == pytest.approx(intraclass(values[:, 1].T))
    assert layer_agreements(grid(values[:1]), "d1.auroc") == []
    assert [one.value for one in layer_agreements(grid(values[:, :, :1]), "d1.auroc")] == [None, None]
