"""D1 of planted cells: signal, chance, grouped folds, a layer chosen within them, fallbacks, and every typed null."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from services.prober.tests.conftest import by_metric, passages_table, planted_cell, planted_vectors, vectors_table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from poolbench.directions import Direction
from poolbench.errors import CellError
from poolbench.pooling import STRATEGIES, TokenContext
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.statistics.folds import grouped_folds
from poolbench.steps.prober import DIRECTIONS, MEASURES, PASSAGES, PROBE, SCORES, VECTORS, NullParams, ProbeParams
from poolbench_prober.d1 import linearity
from poolbench_prober.d1.cell import ProbedCell
from poolbench_prober.d1.core import null_cell, probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.metrics import Resamples, alarm, permuted_measure, selectivity_measure, within_pair_measure
from poolbench_prober.d1.nested import best_layer, nested_measures
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing.mlp import fit_outputs
from poolbench_prober.probing.models import Problem


def by_key(result):
    return {(m.metric, *m.params.values()): m for m in result.measures}


def test_planted_signal_is_found_and_permuted_labels_are_chance(planted):
    found = by_key(planted)
    assert found["d1.auroc",].value > 0.8
    assert found["d1.auroc_test",].value > 0.8
    assert found["d1.within_pair",].value > 0.9
    assert abs(found["d1.auroc_permuted",].value - 0.5) < 0.1
    assert found["d1.selectivity",].value > 0.2
    assert found["d1.direction.C1",].value > 0.8
    assert {m.status for m in planted.measures} == {"ok"} and found["d1.auroc",].reason is None
    for measure in planted.measures:
        if measure.ci_low is not None:
            assert measure.ci_low <= measure.value <= measure.ci_high, measure.metric
            assert measure.ci_method
    assert (found["d1.auroc",].n, found["d1.auroc",].num_groups) == (120, 60)
    assert (found["d1.auroc_test",].n, found["d1.auroc_test",].num_groups) == (60, 30)
    assert found["d1.within_pair",].n == 60
    assert [key[1] for key in found if key[0] == "d1.auroc_domain"] == ["a", "b", "c"]
    assert [key[1] for key in found if key[0] == "d1.auroc_sensitivity"] == [0.01, 0.1, 10.0]


def test_out_of_fold_scores_agree_with_sklearn(design, planted):
    vectors, labels = planted_vectors(design.train, 2.0), design.train.labels
    scores = np.empty(len(labels))
    for fold in range(5):
        held = design.folds == fold
        model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, solver="newton-cholesky"))
        scores[held] = model.fit(vectors[~held], labels[~held]).decision_function(vectors[held])
    ours = np.array([row["score"] for row in planted.scores if row["split"] == "train"])
    np.testing.assert_allclose(ours, scores, atol=1e-4)
    inside = [roc_auc_score(labels[design.folds == f], scores[design.folds == f]) for f in range(5)]
    # Folds of equal size and balance: the pooled within-fold AUROC is the mean over folds.
    assert by_key(planted)["d1.auroc",].value == pytest.approx(np.mean(inside), abs=1e-4)


def test_a_design_follows_from_its_seed(design, params):
    again = Design.build(design.train, design.test, params)
    np.testing.assert_array_equal(again.labelings.labels_nK, design.labelings.labels_nK)
    np.testing.assert_array_equal(again.train_weights, design.train_weights)


def blank_statuses(design, vectors, params):
    result = probe_cell(design, vectors, vectors, params)
    directions = {found.status for found in result.directions.values()}
    assert result.scores == []
    return {measure.status for measure in result.measures} | directions


def test_vectors_and_labels_that_cannot_be_probed_take_down_every_cell(train, params):
    matrix = np.tile(np.random.default_rng(0).normal(size=24) * 50, (120, 1))
    matrix += 1e-4 * np.random.default_rng(1).normal(size=matrix.shape)  # rounding of a kernel
    design = Design.build(train, train, params)
    assert blank_statuses(design, PooledVectors.from_matrix(matrix), params) == {"collapsed"}
    few = Passages.from_table(passages_table(4))
    design = Design.build(few, None, params)
    assert blank_statuses(design, planted_cell(few, 2.0), params) == {"too_few"}
    one = few.take(np.flatnonzero(few.labels == 1))
    design = Design.build(one, None, params)
    assert blank_statuses(design, planted_cell(one, 2.0), params) == {"one_class"}


@pytest.mark.parametrize(
    ("applied", "status"),
    [
        (lambda row, label: row % 3 == 0, "no_coverage"),
        (lambda row, label: label == 1 or row % 10 != 0, "ok"),
        (lambda row, label: label == 1 or row % 10 > 2, "class_dependent_coverage"),
    ],
)
def test_coverage_rules(train, params, applied, status):
    flags = [applied(row // 2, label) for row, label in enumerate(train.labels)]
    if status == "ok":  # a gap of exactly 5 points is allowed
        flags = [label == 1 or row // 2 % 20 != 0 for row, label in enumerate(train.labels)]
    table = vectors_table(train.ids, planted_vectors(train, 2.0), flags)
    vectors = PooledVectors.from_table(table, train.ids)
    result = probe_cell(Design.build(train, None, params), vectors, None, params)
    assert {measure.status for measure in result.measures} == {status}
    assert result.measures[0].coverage == pytest.approx(np.mean(flags))


def test_few_failed_rows_are_left_out_and_many_take_the_cell_down(design, params):
    matrix = planted_vectors(design.train, 2.0)
    matrix[:3] = np.nan
    result = probe_cell(design, PooledVectors.from_matrix(matrix), None, params)
    measure = by_key(result)["d1.auroc",]
    assert (measure.status, measure.n, measure.num_groups) == ("ok", 117, 59)
    assert measure.details["left_out"] == 3
    assert by_key(result)["d1.within_pair",].n == 58
    matrix[:30] = np.inf
    broken = probe_cell(design, PooledVectors.from_matrix(matrix), None, params)
    assert {measure.status for measure in broken.measures} == {"non_finite"}


def test_small_domains_are_too_few_and_unpaired_concepts_have_no_pairs(train, params):
    params = ProbeParams(num_bootstrap=50)
    result = probe_cell(Design.build(train, None, params), planted_cell(train, 2.0), None, params)
    domains = [measure for measure in result.measures if measure.metric == "d1.auroc_domain"]
    assert {measure.status for measure in domains} == {"too_few"}
    assert by_key(result)["d1.auroc",].status == "ok"
    passages = Passages.from_table(passages_table(40, paired=False))
    result = probe_cell(Design.build(passages, None, params), planted_cell(passages, 2.0), None, params)
    assert ("d1.within_pair",) not in by_key(result)
    assert by_key(result)["d1.auroc",].num_groups == 80


def test_directions_fit_on_all_of_train_and_c3_is_the_probe(design, planted):
    vectors, labels = planted_vectors(design.train, 2.0), design.train.labels
    difference = vectors[labels == 1].mean(axis=0) - vectors[labels == 0].mean(axis=0)
    found = planted.directions["C1"]
    assert isinstance(found, Direction)
    np.testing.assert_allclose(found.vector * found.raw_norm, difference)
    assert set(planted.directions) == {"C1", "C2", "C3", "C4", "LDA", "C1_centred"}
    found = by_key(planted)
    assert found["d1.direction.C3",].value == pytest.approx(found["d1.auroc",].value, abs=1e-9)


def test_null_cell_gives_unit_directions(train):
    nulls = null_cell(train, planted_cell(train, 2.0), NullParams(num_nulls=5, seed=3))
    assert [null.id for null in nulls] == [f"null_{number:03d}" for number in range(5)]
    with pytest.raises(CellError, match="same vector"):
        null_cell(train, PooledVectors.from_matrix(np.ones((120, 24))), NullParams())


def unbalanced(num_positives):
    """100 passages on their own, few of them positive."""
    table = passages_table(50, paired=False)
    labels = [int(row < num_positives) for row in range(100)]
    return Passages.from_table(table.set_column(3, "label", [labels]))


def applied_everywhere(vectors):
    """Rows that failed although the strategy applied, so that coverage does not differ between the classes."""
    return replace(PooledVectors.from_matrix(vectors), applied=np.ones(len(vectors), dtype=bool))


def test_a_class_that_lost_its_vectors_is_typed_as_such(params):
    """Under a tenth of the rows is missing, yet a whole class: no probe failed to converge, there was none to fit."""
    passages = unbalanced(6)
    vectors = planted_vectors(passages, 2.0)
    vectors[:6] = np.nan
    design = Design.build(passages, None, params)
    assert blank_statuses(design, applied_everywhere(vectors), params) == {"one_class"}
    vectors = planted_vectors(passages, 2.0)
    kept = np.flatnonzero(design.folds == design.folds[0])[0]
    vectors[[row for row in range(6) if row != kept]] = np.nan  # one positive left: outside its fold there is none
    found = by_key(probe_cell(design, applied_everywhere(vectors), None, params))["d1.auroc",]
    assert (found.status, "one label" in found.reason) == ("too_few", True)


def test_permuted_probes_that_did_not_converge_are_no_chance_check(train):
    """The AUROC of scores that are all NaN would be .5, which is what one hopes to see there."""
    labels, folds = train.labels[:, None], np.arange(120) % 5
    scores = np.full((120, 1), np.nan)
    found = permuted_measure(labels, scores, folds)
    assert (found.value, found.status) == (None, "not_converged")


def test_test_vectors_of_another_width_take_only_the_test_figure_down(design, params):
    train, test = (planted_cell(s, 2.0, width=w) for s, w in ((design.train, 24), (design.test, 8)))
    rows = by_key(probe_cell(design, train, test, params))
    assert rows["d1.auroc_test",].status == "failed"
    assert "width 8" in rows["d1.auroc_test",].reason
    assert rows["d1.auroc",].status == "ok"


#: Windows that are longer than the negatives and shorter than the positives, in tokens.
WINDOWS = {
    "W1_first_k": (16, 24),
    "W2_last_k": (16, 24),
    "W3_middle_k": (16, 24),
    "W2_last_4": (4, 12),
    "W2_last_8": (8, 16),
    "W4_hierarchical": (3, 12),
}


@pytest.mark.parametrize(
    ("strategy_id", "lengths", "inflow"),
    [*((name, lengths, (1.0, 1.0)) for name, lengths in WINDOWS.items()), ("S1_attention", (30, 30), (0.0, 1.0))],
)
def test_what_applies_to_one_class_only_is_no_result(train, params, strategy_id, lengths, inflow):
    """Windows that only positives fill, and attention that only they receive: elsewhere the mean stands in."""
    contexts, states, signals = [], [], []
    for passage_id, label in zip(train.ids, train.labels, strict=True):
        length = lengths[label]
        offsets = np.stack([np.arange(length), np.arange(1, length + 1)], axis=1)
        contexts.append(TokenContext(passage_id, offsets, np.zeros(length, dtype=bool)))
        states.append(torch.linspace(8, 0, length)[:, None])
        signals.append({"inflow": np.r_[inflow[label], np.zeros(length - 1)]})
    spec = next(spec for spec in STRATEGIES.all() if spec.id == strategy_id)
    request = Request.of(strategy_id, spec.params_for(()))
    vectors_BSD, outcomes, _ = pool_layer(states, Weighing.of(contexts, [request]), signals)
    applied = [row[0].applied for row in outcomes]
    assert applied == [label == 1 for label in train.labels]
    vectors = PooledVectors.from_table(vectors_table(train.ids, vectors_BSD[:, 0], applied), train.ids)
    measures = probe_cell(Design.build(train, None, params), vectors, None, params).measures
    assert {(measure.status, measure.value) for measure in measures} == {("class_dependent_coverage", None)}


def test_every_strategy_that_may_fall_back_on_length_is_here():
    windows = {spec.id for spec in STRATEGIES.all() if spec.family == "window"}
    assert windows == set(WINDOWS)


def measures(vectors_nD: np.ndarray, passages: Passages, hidden: int | None = 16) -> dict[str, object]:
    params = ProbeParams(num_bootstrap=200, num_permutations=1, num_control_words=1, sensitivity_c=(), hidden=hidden)
    design = Design.build(passages, None, params)
    return by_metric(probe_cell(design, PooledVectors.from_matrix(vectors_nD), None, params))


@pytest.fixture(scope="module")
def unpaired() -> Passages:
    return Passages.from_table(passages_table(num_pairs=200, paired=False))


def test_a_hidden_layer_finds_what_no_line_separates(unpaired: Passages) -> None:
    rng = np.random.default_rng(1)
    corners = rng.choice([-1.0, 1.0], size=len(unpaired.ids))
    vectors = rng.normal(size=(len(unpaired.ids), 6)) * 0.3
    vectors[:, 0] += corners  # exclusive or: the label is whether the first two coordinates have one sign
    vectors[:, 1] += corners * np.where(unpaired.labels == 1, 1, -1)
    found = measures(vectors, unpaired)
    assert abs(found["d1.auroc"].value - 0.5) < 0.1 and found["d1.auroc_mlp"].value > 0.95
    gain = found["d1.mlp_gain"]
    assert gain.value == pytest.approx(found["d1.auroc_mlp"].value - found["d1.auroc"].value)
    assert 0.3 < gain.ci_low <= gain.value <= gain.ci_high and gain.params == {"hidden": 16}


def test_the_epoch_is_chosen_on_documents_that_the_hidden_layer_was_not_fitted_on(
    unpaired: Passages, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[Problem] = []

    def fit(problem: Problem, hidden: int) -> Any:
        problems.append(problem)
        return fit_outputs(problem, hidden)

    monkeypatch.setattr(linearity, "fit_outputs", fit)
    measures(planted_vectors(unpaired, 2.0), unpaired)
    assert len(problems) == 5
    for problem in problems:
        groups = [set(unpaired.groups[problem.rows[part]]) for part in ("train", "dev", "test")]
        assert all(groups) and sum(map(len, groups)) == len(set.union(*groups)) == len(set(unpaired.groups))


def test_only_an_auroc_far_below_chance_is_an_alarm() -> None:
    samples = np.array([0.3, 0.4, 0.5, np.nan])  # standard deviation .0816
    assert alarm(0.33, samples, "below") == "alarm: below .5 by more than 2 standard errors (0.0816); below"
    assert alarm(0.34, samples, "below") is None
    assert alarm(0.1, np.array([np.nan]), "below") is None


def test_the_order_within_pairs_by_hand() -> None:
    """Of ten pairs, rows 2 i and 2 i + 1, seven are in order and one is a tie; in the second resample one pair is."""
    pairs = np.arange(20).reshape(10, 2)
    scores = np.ravel([(1.0, 0.0)] * 7 + [(0.0, 0.0)] + [(0.0, 1.0)] * 2)
    weights = np.stack([np.ones(20), np.arange(20) // 2 == 9])
    resamples, why = Resamples(weights, np.arange(20) // 2), "3 of 23 passages have no partner"
    found = within_pair_measure(scores, pairs, resamples, reason=why)
    assert (found.value, found.n, found.reason) == (0.75, 10, why)
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(np.percentile([0.75, 0.0], [2.5, 97.5])))
    broken = within_pair_measure(np.full(20, np.nan), pairs, resamples, reason=why)
    assert (broken.status, broken.reason) == ("not_converged", "a probe did not reach its tolerance")
    reasons = [within_pair_measure(scores, pairs[:9], resamples, reason=reason).reason for reason in (None, why)]
    assert reasons == ["9 matched pairs; at least 10 are needed", f"9 matched pairs; at least 10 are needed; {why}"]


def test_selectivity_by_hand() -> None:
    """Two of four pairs of the concept are in order, three of four of the control word."""
    labels = np.array([[1, 1, 0, 0], [1, 0, 1, 0]]).T
    scores = np.array([[3.0, 0.0, 2.0, 1.0], [3.0, 2.0, 1.0, 0.0]]).T
    found = selectivity_measure(labels, scores, ["word"], Resamples(np.ones((2, 4)), np.arange(4)), np.zeros(4))
    assert (found.value, found.ci_low, found.ci_high) == (-0.25, -0.25, -0.25)
    assert found.details == {"control_words": ["word"], "control_auroc": 0.75}


def test_it_adds_little_to_a_linear_signal_and_nothing_without_the_option(unpaired: Passages) -> None:
    found = measures(planted_vectors(unpaired, 2.0), unpaired)
    assert found["d1.auroc"].value > 0.8 and abs(found["d1.mlp_gain"].value) < 0.05
    constant = np.ones((len(unpaired.ids), 4))
    assert "d1.mlp_gain" not in measures(constant, unpaired, hidden=None)
    found = measures(constant, unpaired)
    assert {found[name].status for name in ("d1.auroc", "d1.auroc_mlp", "d1.mlp_gain")} == {"collapsed"}


def test_only_the_measures_of_a_probe_depend_on_it() -> None:
    inputs = {role: str(role) for role in (PASSAGES("train"), VECTORS("train", "A1_mean", 3))}
    keys = [
        {role: PROBE.key(role("A1_mean", 3), params, inputs) for role in (MEASURES, DIRECTIONS, SCORES)}
        for params in (ProbeParams(concept="c"), ProbeParams(concept="c", hidden=8))
    ]
    assert [keys[0][role] == keys[1][role] for role in keys[0]] == [False, True, True]


def layers_of(design, shifts, seed=0):
    splits = (design.train, design.test)
    return {
        layer: tuple(planted_cell(split, shift, seed=seed + layer) for split in splits)
        for layer, shift in enumerate(shifts)
    }


def test_the_layer_with_the_signal_is_chosen_in_every_fold(design, params):
    layers = layers_of(design, (0.0, 2.0, 0.3))
    train, test = nested_measures(design, layers, params)
    assert train.details["chosen"] == [1] * 5
    assert test.details["chosen"] == [1]
    own = {m.metric: m for m in probe_cell(design, *layers[1], params).measures if not m.params}
    assert train.value == pytest.approx(own["d1.auroc"].value, abs=1e-12)
    assert test.value == pytest.approx(own["d1.auroc_test"].value, abs=1e-12)
    assert (train.ci_low, train.ci_high) == pytest.approx((own["d1.auroc"].ci_low, own["d1.auroc"].ci_high))


@pytest.mark.lane(name="simulations")
def test_choosing_among_layers_without_signal_gains_nothing():
    """The best of 8 layers by their own figure is above chance; the nested choice is not."""
    params = ProbeParams(num_bootstrap=0, num_permutations=1, num_control_words=1, sensitivity_c=())
    passages = Passages.from_table(passages_table(40))
    design = Design.build(passages, passages, params)
    nested, best = [], []
    for seed in range(0, 60, 10):
        layers = layers_of(design, (0.0,) * 8, seed=seed)
        nested.append(nested_measures(design, layers, params)[0].value)
        cells = {n: ProbedCell.of(design, v[0], np.arange(80), params, {}) for n, v in layers.items()}
        top = best_layer(cells, np.arange(80), design.folds)
        best.append(probe_cell(design, layers[top][0], None, params).measures[0].value)
    assert abs(np.mean(nested) - 0.5) < 0.06
    assert np.mean(best) > 0.53


def test_held_out_labels_and_vectors_play_no_part_in_the_choice(design, params):
    layers = layers_of(design, (1.0, 1.1))
    cells = {n: ProbedCell.of(design, v[0], np.arange(120), params, {}) for n, v in layers.items()}
    fitted = np.flatnonzero(design.folds != 0)
    inner = grouped_folds(design.train.groups[fitted], design.train.labels[fitted], 4, 0)
    before = best_layer(cells, fitted, inner)
    for cell in cells.values():
        cell.matrix_nW[design.folds == 0] = 1e6
    assert best_layer(cells, fitted, inner) == before


def test_layers_and_rows_that_cannot_be_probed_are_left_out(design, params):
    layers = layers_of(design, (0.5, 2.0))
    flat = tuple(PooledVectors.from_matrix(np.ones((n, 24))) for n in (120, 60))
    assert nested_measures(design, {**layers, 1: flat}, params)[0].details["chosen"] == [0] * 5
    blank = nested_measures(design, {0: flat, 1: flat}, params)
    assert [(m.metric, m.status) for m in blank] == [
        ("d1.auroc_nested", "collapsed"),
        ("d1.auroc_test_nested", "collapsed"),
    ]
    layers = layers_of(design, (1.0, 2.0))
    broken = planted_vectors(design.train, 1.0)
    broken[:2] = np.nan
    layers[0] = (PooledVectors.from_matrix(broken), layers[0][1])
    assert nested_measures(design, layers, params)[0].n == 118
    few = Passages.from_table(passages_table(4))
    design = Design.build(few, few, params)
    assert {m.status for m in nested_measures(design, layers_of(design, (1.0, 1.0)), params)} == {"too_few"}


def test_folds_of_other_seeds_are_reported_with_their_spread(train, params):
    seeded = params.model_copy(update={"fold_seeds": (1, 2)})
    vectors = planted_cell(train, 1.0)
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


def test_passages_without_a_partner_are_left_out_of_the_pairs_and_counted(params):
    table = passages_table(60)
    pairs = table["pair_id"].to_pylist()
    pairs[0], pairs[5] = None, "pair9"  # one without pair, one pair with three members, one that lost a member
    passages = Passages.from_table(table.set_column(table.schema.get_field_index("pair_id"), "pair_id", [pairs]))
    vectors = planted_cell(passages, 2.0)
    rows = by_metric(probe_cell(Design.build(passages, None, params), vectors, None, params))
    within = rows["d1.within_pair"]
    assert within.n == 57
    assert within.reason == "6 of 120 passages have no partner of the other class and are left out"
    assert rows["d1.auroc"].n == 120


def test_convergence_is_recorded_and_no_converged_layer_is_an_error(train, params, design):
    vectors = planted_cell(train, 1.0)
    row = probe_cell(Design.build(train, None, params), vectors, None, params).measures[0]
    assert 0 < row.details["gradient_ratio"] <= params.tolerance
    layers = layers_of(design, (1.0,))
    cell = ProbedCell.of(design, layers[0][0], np.arange(120), params, {})
    one_class = np.zeros(120, dtype=int)
    one_class[design.train.labels == 1] = 1  # each inner training fold holds one class
    with pytest.raises(CellError, match="no layer has a converged probe"):
        best_layer({0: cell}, np.arange(120), one_class)
