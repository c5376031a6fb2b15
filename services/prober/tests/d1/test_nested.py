"""A layer chosen inside the training folds; folds of other seeds; passages without a partner."""

import numpy as np
import pytest
from services.prober.tests.conftest import by_metric

from poolbench.errors import CellError
from poolbench.statistics.folds import grouped_folds
from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.cell import ProbedCell
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.nested import best_layer, nested_measures
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors


def layers_of(design, plant, shifts, seed=0):
    splits = (design.train, design.test)
    return {
        layer: tuple(PooledVectors.from_matrix(plant(split, shift, seed=seed + layer)) for split in splits)
        for layer, shift in enumerate(shifts)
    }


def test_the_layer_with_the_signal_is_chosen_in_every_fold(design, plant, params):
    layers = layers_of(design, plant, (0.0, 2.0, 0.3))
    train, test = nested_measures(design, layers, params)
    assert train.details["chosen"] == [1] * 5
    assert test.details["chosen"] == [1]
    own = {m.metric: m for m in probe_cell(design, *layers[1], params).measures if not m.params}
    assert train.value == pytest.approx(own["d1.auroc"].value, abs=1e-12)
    assert test.value == pytest.approx(own["d1.auroc_test"].value, abs=1e-12)
    assert (train.ci_low, train.ci_high) == pytest.approx((own["d1.auroc"].ci_low, own["d1.auroc"].ci_high))


@pytest.mark.lane(name="simulations")
def test_choosing_among_layers_without_signal_gains_nothing(make_passages, plant):
    """The best of 8 layers by their own figure is above chance; the nested choice is not."""
    params = ProbeParams(num_bootstrap=0, num_permutations=1, num_control_words=1, sensitivity_c=())
    passages = Passages.from_table(make_passages(40))
    design = Design.build(passages, passages, params)
    nested, best = [], []
    for seed in range(0, 60, 10):
        layers = layers_of(design, plant, (0.0,) * 8, seed=seed)
        nested.append(nested_measures(design, layers, params)[0].value)
        cells = {n: ProbedCell.of(design, v[0], np.arange(80), params, {}) for n, v in layers.items()}
        top = best_layer(cells, np.arange(80), design.folds)
        best.append(probe_cell(design, layers[top][0], None, params).measures[0].value)
    assert abs(np.mean(nested) - 0.5) < 0.06
    assert np.mean(best) > 0.53


def test_held_out_labels_and_vectors_play_no_part_in_the_choice(design, plant, params):
    layers = layers_of(design, plant, (1.0, 1.1))
    cells = {n: ProbedCell.of(design, v[0], np.arange(120), params, {}) for n, v in layers.items()}
    fitted = np.flatnonzero(design.folds != 0)
    inner = grouped_folds(design.train.groups[fitted], design.train.labels[fitted], 4, 0)
    before = best_layer(cells, fitted, inner)
    for cell in cells.values():
        cell.matrix_nW[design.folds == 0] = 1e6
    assert best_layer(cells, fitted, inner) == before


def test_layers_and_rows_that_cannot_be_probed_are_left_out(design, plant, params, make_passages):
    layers = layers_of(design, plant, (0.5, 2.0))
    flat = tuple(PooledVectors.from_matrix(np.ones((n, 24))) for n in (120, 60))
    assert nested_measures(design, {**layers, 1: flat}, params)[0].details["chosen"] == [0] * 5
    blank = nested_measures(design, {0: flat, 1: flat}, params)
    assert [(m.metric, m.status) for m in blank] == [
        ("d1.auroc_nested", "collapsed"),
        ("d1.auroc_test_nested", "collapsed"),
    ]
    layers = layers_of(design, plant, (1.0, 2.0))
    broken = plant(design.train, 1.0)
    broken[:2] = np.nan
    layers[0] = (PooledVectors.from_matrix(broken), layers[0][1])
    assert nested_measures(design, layers, params)[0].n == 118
    few = Passages.from_table(make_passages(4))
    design = Design.build(few, few, params)
    assert {m.status for m in nested_measures(design, layers_of(design, plant, (1.0, 1.0)), params)} == {"too_few"}


def test_folds_of_other_seeds_are_reported_with_their_spread(train, plant, params):
    seeded = params.model_copy(update={"fold_seeds": (1, 2)})
    vectors = PooledVectors.from_matrix(plant(train, 1.0))
    rows = probe_cell(Design.build(train, None, seeded), vectors, None, seeded).measures
    each = [m for m in rows if m.metric == "d1.auroc_seed"]
    assert [(m.seed, m.params) for m in each] == [(1, {"seed": 1}), (2, {"seed": 2})]
    spread = next(m for m in rows if m.metric == "d1.seed_spread")
    first = next(m for m in rows if m.metric == "d1.auroc")
    assert spread.value == pytest.approx(np.std([first.value, *(m.value for m in each)], ddof=1))
    alone = params.model_copy(update={"seed": 1})
    again = probe_cell(Design.build(train, None, alone), vectors, None, alone).measures[0]
    assert each[0].value == pytest.approx(again.value, abs=1e-12)
    blank = probe_cell(Design.build(train, None, seeded), PooledVectors.from_matrix(np.ones((120, 4))), None, seeded)
    assert {m.status for m in blank.measures if "seed" in m.metric} == {"collapsed"}


def test_passages_without_a_partner_are_left_out_of_the_pairs_and_counted(make_passages, plant, params):
    table = make_passages(60)
    pairs = table["pair_id"].to_pylist()
    pairs[0], pairs[5] = None, "pair9"  # one without pair, one pair with three members, one that lost a member
    passages = Passages.from_table(table.set_column(table.schema.get_field_index("pair_id"), "pair_id", [pairs]))
    vectors = PooledVectors.from_matrix(plant(passages, 2.0))
    rows = by_metric(probe_cell(Design.build(passages, None, params), vectors, None, params))
    within = rows["d1.within_pair"]
    assert within.n == 57
    assert within.reason == "6 of 120 passages have no partner of the other class and are left out"
    assert rows["d1.auroc"].n == 120


def test_constant_features_change_nothing(train, plant, params):
    vectors = plant(train, 1.0)
    padded = np.hstack([vectors, np.full((120, 3), 7.7)])
    rows = [
        {(m.metric, str(m.params)): m.value for m in result.measures}
        for result in (
            probe_cell(Design.build(train, None, params), PooledVectors.from_matrix(each), None, params)
            for each in (vectors, padded)
        )
    ]
    lda = ("d1.direction.LDA", "{}")  # its shrinkage counts the features
    assert {k: v for k, v in rows[0].items() if k != lda} == pytest.approx(
        {k: v for k, v in rows[1].items() if k != lda}
    )


def test_convergence_is_recorded_and_no_converged_layer_is_an_error(train, plant, params, design):
    vectors = PooledVectors.from_matrix(plant(train, 1.0))
    row = probe_cell(Design.build(train, None, params), vectors, None, params).measures[0]
    assert 0 < row.details["gradient_ratio"] <= params.tolerance
    layers = layers_of(design, plant, (1.0,))
    cell = ProbedCell.of(design, layers[0][0], np.arange(120), params, {})
    one_class = np.zeros(120, dtype=int)
    one_class[design.train.labels == 1] = 1  # each inner training fold holds one class
    with pytest.raises(CellError, match="no layer has a converged probe"):
        best_layer({0: cell}, np.arange(120), one_class)
