"""Readouts, learned queries and direction C5 stay inside the training rows."""

import json

import numpy as np
import pytest
from safetensors.numpy import save
from scipy.optimize import check_grad
from scipy.special import expit
from services.prober.tests.conftest import by_metric, passages_table, planted_cell
from sklearn.linear_model import LogisticRegression

from poolbench.directions import Direction, SparseAutoencoder
from poolbench.errors import CellError, InputError
from poolbench.pooling.states import KeptPassage, states_table
from poolbench.readouts import Training
from poolbench.readouts.heads import best_heads
from poolbench.readouts.query import learned_query, loss_and_gradient, softmax_mean
from poolbench.readouts.scores import max_score, mean_score
from poolbench.readouts.tokens import PENALTY, Standardised
from poolbench.statistics.auroc import auroc
from poolbench.steps.prober import NullParams, ProbeParams
from poolbench_prober.d1.core import null_cell, probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.reading import RowReader, probe_scores
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.tokens import TokenStates
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.tables import directions_table, measures_table

WIDTH = 6


def parts_of_split(passages, num_parts, carrier=None, shift=2.0, seed=0, width=WIDTH):
    """Noise in every part with an effect of the document, and a class shift in the part ``carrier``."""
    rng = np.random.default_rng(seed)
    document = rng.normal(size=(passages.groups.max() + 1, num_parts, width))[passages.groups]
    parts = document + rng.normal(size=document.shape)
    if carrier is not None:
        parts[:, carrier, 0] += shift * passages.labels
    return parts


def as_vectors(parts_nPD):
    matrix = parts_nPD.reshape(len(parts_nPD), -1).astype(np.float32)
    rows = np.ones(len(matrix), dtype=bool)
    return PooledVectors(matrix, rows, rows, (None,) * len(matrix), num_parts=parts_nPD.shape[1], readout="best_heads")


def out_of_fold_auroc(vectors_nD, labels, folds):
    scores = probe_scores(vectors_nD, labels[:, None].astype(float), folds, 1.0, 1e-6)[:, 0]
    return auroc(labels, scores, folds)


@pytest.fixture(scope="module")
def planted(train, test_split, params):
    cells = [
        as_vectors(parts_of_split(split, 8, carrier=5, shift=4.0, seed=seed))
        for seed, split in enumerate((train, test_split))
    ]
    return probe_cell(Design.build(train, test_split, params), *cells, params)


def test_the_head_that_carries_the_concept_is_chosen_in_every_fold(planted):
    found = by_metric(planted)
    assert {measure.status for measure in planted.measures} == {"ok"}
    assert found["d1.auroc"].value > 0.7
    assert found["d1.auroc_test"].value > 0.7
    assert found["d1.direction.C1"].value > 0.7
    by_fold = found["d1.auroc"].details["readouts"]
    assert len(by_fold) == 5
    assert all(5 in fold["heads"] and len(fold["heads"]) == 2 for fold in by_fold)
    assert all(np.argmax(fold["auroc"]) == 5 for fold in by_fold)
    assert 5 in planted.readout["heads"]
    assert found["d1.auroc_test"].details["readouts"] == [planted.readout]


def test_directions_are_those_of_the_vectors_read_out_on_all_train_rows(planted, train):
    parts = parts_of_split(train, 8, carrier=5, shift=4.0).astype(np.float32).astype(np.float64)
    vectors = parts[:, planted.readout["heads"]].mean(axis=1)
    difference = vectors[train.labels == 1].mean(axis=0) - vectors[train.labels == 0].mean(axis=0)
    found = planted.directions["C1"]
    np.testing.assert_allclose(found.vector * found.raw_norm, difference, rtol=1e-6, atol=1e-9)
    table = directions_table(planted.directions, WIDTH, planted.readout)
    assert table.schema.field("vector").type.list_size == WIDTH
    assert b'"heads"' in table.schema.metadata[b"readout"]
    details = [text for text in measures_table(planted.measures)["details"].to_pylist() if text]
    assert any("readouts" in text for text in details)
    assert not any("control_words" in text for text in details)  # words of passages, which may be restricted


@pytest.mark.lane(name="simulations")
def test_nested_selection_is_chance_on_noise_where_selection_outside_the_folds_is_not():
    """The reason for nesting: heads chosen on the rows that are scored separate the classes of pure noise."""
    passages, num_parts = Passages.from_table(passages_table(50)), 24
    nested, permuted, outside = [], [], []
    for seed in range(16):
        parts = parts_of_split(passages, num_parts, seed=seed, width=2)
        params = ProbeParams(seed=seed, num_bootstrap=0, min_domain_class=1000, num_control_words=1)
        design = Design.build(passages, None, params)
        found = by_metric(probe_cell(design, as_vectors(parts), None, params))
        nested.append(found["d1.auroc"].value)
        permuted.append(found["d1.auroc_permuted"].value)
        ranked = [out_of_fold_auroc(parts[:, part], passages.labels, design.folds) for part in range(num_parts)]
        best = np.argsort(ranked)[-num_parts // 4 :]
        outside.append(out_of_fold_auroc(parts[:, best].mean(axis=1), passages.labels, design.folds))
    assert abs(np.mean(nested) - 0.5) < 0.03
    assert abs(np.mean(permuted) - 0.5) < 0.03
    assert np.mean(outside) > 0.55


def test_a_readout_of_permuted_labels_ranks_by_those_labels(train, params):
    """Label columns that differ get readouts of their own; equal ones share."""
    parts = parts_of_split(train, 8, carrier=5)
    other = np.arange(len(train.ids)) // 2 % 2  # of whole pairs, so that it can be learned
    parts[:, 2, 0] += 3.0 * other
    labels = np.stack([train.labels, train.labels, other], axis=1).astype(float)
    reading = RowReader("best_heads", 8)
    views = reading.views(as_vectors(parts).matrix_nW, train, np.arange(len(train.ids)), labels)
    assert [view.columns.tolist() for view in views] == [[0, 1], [2]]
    assert [np.argmax(view.details["auroc"]) for view in views] == [5, 2]


def test_without_a_readout_of_the_concept_there_are_no_vectors(train):
    parts = parts_of_split(train, 8, carrier=5)
    labels = np.stack([np.zeros(len(train.ids)), train.labels], axis=1)  # no part separates a class that nobody has
    with pytest.raises(CellError):
        RowReader("best_heads", 8).views(as_vectors(parts).matrix_nW, train, np.arange(len(train.ids)), labels)


def test_a_fold_whose_training_rows_have_one_class_has_no_scores():
    vectors = np.random.default_rng(0).normal(size=(40, 3))
    folds = np.arange(40) % 2
    labels = np.zeros((40, 1))
    labels[:10:2] = 1  # all in fold 0
    scores = probe_scores(vectors, labels, folds, 1.0, 1e-6)[:, 0]
    assert np.isnan(scores[folds == 0]).all() and np.isfinite(scores[folds == 1]).all()


def test_held_out_rows_have_no_influence_on_the_readout(train):
    parts = parts_of_split(train, 8, carrier=5)
    rows = np.arange(80)
    spoiled = parts.copy()
    spoiled[80:] = 1e6
    labels = train.labels[:, None].astype(float)
    first, second = (
        RowReader("best_heads", 8).views(as_vectors(p).matrix_nW, train, rows, labels)[0] for p in (parts, spoiled)
    )
    assert first.details == second.details
    np.testing.assert_array_equal(
        first.vectors(as_vectors(parts).matrix_nW),
        as_vectors(parts[:, first.details["heads"]]).matrix_nW.reshape(120, 2, -1).mean(1, dtype=float),
    )


def training_of(parts, labels, folds):
    return Training(parts, labels, folds, lambda vectors: probe_scores(vectors, labels, folds, 1.0, 1e-8))


def test_the_order_of_rows_changes_nothing(train):
    parts, labels = parts_of_split(train, 6, carrier=1, shift=0.7), train.labels[:, None].astype(float)
    folds = train.groups % 2
    order = np.random.default_rng(0).permutation(len(labels))
    (straight,) = best_heads(training_of(parts, labels, folds))
    (shuffled,) = best_heads(training_of(parts[order], labels[order], folds[order]))
    assert straight.details == shuffled.details
    np.testing.assert_allclose(straight.apply(parts)[order], shuffled.apply(parts[order]))


def test_equal_parts_read_out_as_the_part_itself(train, params):
    """Uniform attention makes every head's vector the mean over tokens: S3 is then A1."""
    one = parts_of_split(train, 1, carrier=0)
    design = Design.build(train, None, params)
    parts = by_metric(probe_cell(design, as_vectors(np.repeat(one, 4, axis=1)), None, params))
    plain = PooledVectors.from_matrix(one[:, 0].astype(np.float32))
    assert parts["d1.auroc"].value == pytest.approx(
        by_metric(probe_cell(design, plain, None, params))["d1.auroc"].value
    )
    assert parts["d1.auroc"].details["readouts"][0]["heads"] == [0]


def test_the_number_of_heads_is_a_quarter_rounded_up(train):
    labels = train.labels[:, None].astype(float)
    for num_parts, kept in ((1, 1), (4, 1), (5, 2), (32, 8)):
        (found,) = best_heads(training_of(parts_of_split(train, num_parts), labels, train.groups % 2))
        assert len(found.details["heads"]) == kept


def test_a_labeling_without_both_classes_has_no_readout(train, params):
    parts, folds = parts_of_split(train, 3), train.groups % 2
    labels = np.stack([train.labels, np.where(folds == 0, train.labels, 0)], axis=1).astype(float)
    good, bad = best_heads(training_of(parts, labels, folds))
    assert not isinstance(good, CellError)
    assert isinstance(bad, CellError) and bad.status == "not_converged"


def test_nulls_are_never_made_of_parts(train):
    with pytest.raises(CellError, match="without a readout"):
        null_cell(train, as_vectors(parts_of_split(train, 3)), NullParams())


QUERY_WIDTH = 12


def states_of(passages, mark=0.0, seed=0):
    """Noise tokens; with ``mark``, one at random carries a mark (coordinate 0) and the class (coordinate 1)."""
    rng = np.random.default_rng(seed)
    states = []
    for label in passages.labels:
        h_TD = rng.normal(size=(rng.integers(15, 30), QUERY_WIDTH))
        place = rng.integers(len(h_TD))
        h_TD[place, 0] += mark
        h_TD[place, 1] += mark / 3 * (2 * label - 1)
        states.append(h_TD.astype(np.float32))
    return states


def kept(passages, states, padding=0):
    """The same as shards, in another order, with special tokens before and after."""
    junk = np.full((1, QUERY_WIDTH), 1e4, np.float32)
    rows = []
    for position, (passage_id, h_TD) in enumerate(zip(passages.ids, states, strict=True)):
        special = np.zeros(len(h_TD) + 2 * padding, bool)
        special[:padding] = special[len(special) - padding :] = True
        hidden = np.concatenate([*[junk] * padding, h_TD, *[junk] * padding])
        offsets = np.zeros((len(hidden), 2), np.int64)
        rows.append(KeptPassage(position, passage_id, hidden, special, None, offsets))
    return [states_table(rows[start::3], QUERY_WIDTH) for start in (2, 0, 1)]


def tokens(passages, states, readout="learned_query", **options):
    return TokenStates.from_shards(kept(passages, states, **options), passages, readout)


def as_parts(states):
    parts = np.empty((len(states), 1, 1), dtype=object)
    parts[:, 0, 0] = states
    return parts


def fit(states, *labelings):
    labels = np.stack(labelings, axis=1).astype(float)
    return learned_query(Training(as_parts(states), labels, np.arange(len(labels)) % 2, lambda vectors: vectors))


def auroc_of(passages, vectors, **params):
    params = ProbeParams(num_bootstrap=0, min_domain_class=1000, num_control_words=1, num_permutations=1, **params)
    result = probe_cell(Design.build(passages, None, params), vectors, None, params)
    return next(measure for measure in result.measures if measure.metric == "d1.auroc")


@pytest.mark.parametrize("seed", [0, 1])
def test_the_gradient_is_that_of_finite_differences(train, seed):
    rows = train.take(np.arange(10))
    standardised = Standardised.of(states_of(rows, mark=3.0))
    theta = np.random.default_rng(seed).normal(size=2 * QUERY_WIDTH + 1)
    labels = rows.labels.astype(float)
    gap = check_grad(
        lambda x: loss_and_gradient(x, standardised, labels)[0],
        lambda x: loss_and_gradient(x, standardised, labels)[1],
        theta,
        epsilon=1e-6,
    )
    assert gap < 1e-5


def test_blocks_change_nothing(train, monkeypatch):
    states, labels = states_of(train, mark=3.0), train.labels.astype(float)
    theta = np.random.default_rng(0).normal(size=2 * QUERY_WIDTH + 1)
    whole = loss_and_gradient(theta, Standardised.of(states), labels)
    monkeypatch.setattr("poolbench.readouts.tokens.BLOCK_TOKENS", 50)
    monkeypatch.setattr("poolbench.readouts.tokens.HELD_NUMBERS", 0)
    parted = loss_and_gradient(theta, Standardised.of(states), labels)
    assert parted[0] == pytest.approx(whole[0], rel=1e-12)
    np.testing.assert_allclose(parted[1], whole[1], rtol=1e-9, atol=1e-13)


def test_pooling_is_the_softmax_by_hand():
    h_TD = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]], np.float32)
    query = np.array([2 * np.log(3.0), 0.0, 7.0, 7.0])  # scores ln 3 and 0: weights 3/4 and 1/4
    np.testing.assert_allclose(softmax_mean(query, h_TD), [0.75, 0.5, 0, 0])
    np.testing.assert_allclose(softmax_mean(np.zeros(4), h_TD), h_TD.mean(axis=0))
    np.testing.assert_allclose(softmax_mean(1e6 * query, h_TD), h_TD[0])


@pytest.fixture(scope="module")
def planted_states():
    passages = Passages.from_table(passages_table(100))
    return passages, states_of(passages, mark=6.0)


def test_a_token_at_a_random_place_is_found_where_the_mean_drowns_it(planted_states):
    passages, states = planted_states
    mean = PooledVectors.from_matrix(np.stack([h_TD.mean(axis=0) for h_TD in states]))
    learned = auroc_of(passages, tokens(passages, states))
    assert learned.status == "ok" and len(learned.details["readouts"]) == 5
    assert learned.value > 0.95 > auroc_of(passages, mean).value + 0.1


@pytest.mark.lane(name="simulations")
def test_noise_is_chance_out_of_fold():
    passages = Passages.from_table(passages_table(40))
    values = [auroc_of(passages, tokens(passages, states_of(passages, seed=s)), seed=s).value for s in range(12)]
    assert abs(np.mean(values) - 0.5) < 0.06


def test_neither_order_special_tokens_units_nor_constants_matter(planted_states):
    passages, states = planted_states
    order = np.random.default_rng(0).permutation(len(states))
    (straight,) = fit(states, passages.labels)
    (shuffled,) = fit([states[row] for row in order], passages.labels[order])
    np.testing.assert_allclose(shuffled.apply(as_parts(states)), straight.apply(as_parts(states)), rtol=1e-5, atol=1e-6)
    found, padded = tokens(passages, states), tokens(passages, states, padding=2)
    for row, h_TD in enumerate(states):
        np.testing.assert_array_equal(found.matrix_nW[row, 0], h_TD)
        np.testing.assert_array_equal(padded.matrix_nW[row, 0], h_TD)
    passages, states = planted_states
    (one,) = fit(states, passages.labels)
    other = [(1024 * h_TD + 512).astype(np.float32) for h_TD in states]
    (scaled,) = fit(other, passages.labels)
    wanted = 1024 * one.apply(as_parts(states)) + 512
    np.testing.assert_allclose(scaled.apply(as_parts(other)), wanted, rtol=1e-3, atol=1)
    passages, states = planted_states
    (found,) = fit([np.pad(h_TD, ((0, 0), (0, 1)), constant_values=3.3) for h_TD in states[:40]], passages.labels[:40])
    pooled = found.apply(as_parts([np.pad(h_TD, ((0, 0), (0, 1)), constant_values=3.3) for h_TD in states]))
    np.testing.assert_allclose(pooled[:, -1], 3.3, rtol=1e-6)


def test_every_labeling_learns_alone(planted_states):
    passages, states = planted_states
    other = np.arange(len(states)) // 2 % 2
    first, second, constant = fit(states, passages.labels, other, np.ones(len(other)))
    (alone,) = fit(states, other)
    np.testing.assert_array_equal(second.apply(as_parts(states)), alone.apply(as_parts(states)))
    assert first.details != second.details
    assert isinstance(constant, CellError) and constant.status == "one_class"


@pytest.mark.parametrize("readout", ["learned_query", "mean_score", "max_score"])
def test_held_out_rows_have_no_influence(planted_states, readout):
    passages, states = planted_states
    labels, rows = passages.labels[:, None].astype(float), np.arange(100)
    spoiled = [*states[:100], *[h_TD + 1e3 for h_TD in states[100:]]]
    found = [
        RowReader(readout).views(tokens(passages, s).matrix_nW, passages, rows, labels)[0] for s in (states, spoiled)
    ]
    matrix = tokens(passages, states).matrix_nW[:100]
    np.testing.assert_array_equal(found[0].vectors(matrix), found[1].vectors(matrix))


def test_scores_are_those_of_a_probe_of_tokens_in_scikit_learn(planted_states):
    """Passages weigh alike, whatever their length; a passage's vector is its score times the probe's unit weights."""
    passages, states = planted_states
    tokens_ND, lengths = np.concatenate(states), [len(h_TD) for h_TD in states]
    mean_D, scale_D = tokens_ND.mean(axis=0, dtype=np.float64), tokens_ND.std(axis=0, dtype=np.float64)
    probe = LogisticRegression(C=1 / PENALTY, tol=1e-10, max_iter=10_000)
    weights = 1 / (np.repeat(lengths, lengths) * len(states))
    probe.fit((tokens_ND - mean_D) / scale_D, np.repeat(passages.labels, lengths), weights)
    margins = [probe.decision_function((h_TD - mean_D) / scale_D) for h_TD in states]
    unit_D = probe.coef_[0] / scale_D / np.linalg.norm(probe.coef_[0] / scale_D)
    training = Training(as_parts(states), passages.labels[:, None].astype(float), np.zeros(len(states)), lambda v: v)
    expected = {mean_score: [expit(one).mean() for one in margins], max_score: [one.max() for one in margins]}
    for readout, scores in expected.items():
        (fitted,) = readout(training)
        np.testing.assert_allclose(fitted.apply(as_parts(states)), np.outer(scores, unit_D), rtol=2e-3, atol=2e-3)


def test_the_highest_score_finds_a_token_where_the_mean_of_states_drowns_it(planted_states):
    passages, _ = planted_states
    rng, states = np.random.default_rng(2), states_of(passages, seed=2)
    for label, h_TD in zip(passages.labels, states, strict=True):
        h_TD[rng.integers(len(h_TD)), 1] += 6 * label
    mean = PooledVectors.from_matrix(np.stack([h_TD.mean(axis=0) for h_TD in states]))
    found = {name: auroc_of(passages, tokens(passages, states, name)) for name in ("mean_score", "max_score")}
    assert {measure.status for measure in found.values()} == {"ok"}
    assert found["max_score"].value > 0.95 > auroc_of(passages, mean).value + 0.05
    noise = auroc_of(passages, tokens(passages, states_of(passages, seed=3), "max_score"))
    assert noise.value < 0.75


def test_more_states_than_memory_are_a_failure_with_a_reason(planted_states):
    passages, states = planted_states
    large = TokenStates.from_shards(kept(passages, states), passages, "learned_query", max_bytes=1 << 16)
    measure = auroc_of(passages, large)
    assert measure.status == "failed" and measure.value is None and "may hold" in measure.reason


def test_failed_passages_keep_their_reason_and_missing_ones_are_an_error(planted_states):
    passages, states = planted_states
    shards = kept(passages, [np.where(row == 5, np.nan, h_TD) for row, h_TD in enumerate(states)])
    found = TokenStates.from_shards(shards, passages, "learned_query")
    assert found.errors[5].status == "non_finite" and found.usable.sum() == len(states) - 1
    assert auroc_of(passages, found).status == "ok"
    with pytest.raises(InputError, match="lack"):
        TokenStates.from_shards(shards[:2], passages, "learned_query")
    with pytest.raises(InputError, match="twice"):
        TokenStates.from_shards([*shards, shards[0]], passages, "learned_query")


def autoencoder(width, num_features=64, seed=0):
    rng = np.random.default_rng(seed)
    decoder = rng.normal(size=(num_features, width)).astype(np.float32)
    tensors = {"W_enc": decoder.T.copy(), "W_dec": decoder, "b_dec": np.zeros(width, np.float32)}
    tensors["b_enc"] = np.zeros(num_features, np.float32)
    return SparseAutoencoder.from_bytes(save(tensors), json.dumps({"architecture": "topk", "k": 32}).encode())


@pytest.fixture(scope="module")
def design(train, params):
    return Design.build(train, None, params)


def by_direction(result):
    return {m.direction: m for m in result.measures if m.direction}


def test_c5_is_measured_where_the_layer_has_an_autoencoder(design, params):
    vectors, sae = planted_cell(design.train, 3.0), autoencoder(24)
    few = params.model_copy(update={"sae_features": 5})
    result = probe_cell(design, vectors, None, few, sae)
    row = by_direction(result)["C5"]
    assert row.value > 0.8
    assert row.params == {"sae": sae.id, "num_features": 5}
    found = result.directions["C5"]
    assert isinstance(found, Direction)
    features, labels = sae.encode(vectors.matrix_nW), design.train.labels
    difference = features[labels == 1].mean(axis=0) - features[labels == 0].mean(axis=0)
    top = np.argsort(-np.abs(difference))[:5]
    expected = difference[top] @ sae.w_dec[top]
    np.testing.assert_allclose(found.vector, expected / np.linalg.norm(expected), atol=1e-5)


def test_c5_leaves_the_other_figures_alone_and_fails_alone(design, params):
    vectors = planted_cell(design.train, 1.0)
    plain = probe_cell(design, vectors, None, params)
    with_sae = probe_cell(design, vectors, None, params, autoencoder(24))
    assert "C5" not in plain.directions
    rest = [m for m in with_sae.measures if m.direction != "C5"]
    assert rest == plain.measures
    result = probe_cell(design, planted_cell(design.train, 1.0), None, params, autoencoder(8))
    rows = by_direction(result)
    assert (rows["C5"].status, rows["C1"].status) == ("failed", "ok")
    assert "reads width 8; the vectors have 24" in rows["C5"].reason
    result = probe_cell(design, PooledVectors.from_matrix(np.ones((120, 24))), None, params, autoencoder(24))
    assert by_direction(result)["C5"].status == "collapsed"
    assert "C5" in result.directions
