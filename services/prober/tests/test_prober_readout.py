"""Readouts stay inside the training rows: the head that carries the concept is found, and noise stays noise."""

import numpy as np
import pytest

from poolbench.contracts.tables import parts_of, vectors_schema
from poolbench.errors import CellError, UnknownNameError
from poolbench.readouts import READOUTS, Training
from poolbench.readouts.heads import best_heads
from poolbench.statistics.auroc import auroc
from poolbench.steps.prober import NullParams, ProbeParams
from poolbench_prober.d1.core import null_cell, probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.d1.reading import RowReader, probe_scores
from poolbench_prober.inputs.corpus import Passages
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


def by_metric(result):
    return {measure.metric: measure for measure in result.measures}


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


@pytest.mark.slow
def test_nested_selection_is_chance_on_noise_where_selection_outside_the_folds_is_not(make_passages):
    """The reason for nesting: heads chosen on the rows that are scored separate the classes of pure noise."""
    passages, num_parts = Passages.from_table(make_passages(50)), 24
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


def test_too_few_groups_to_rank_in_take_the_cell_down(make_passages, params):
    few = Passages.from_table(make_passages(4))
    result = probe_cell(Design.build(few, None, params), as_vectors(parts_of_split(few, 3)), None, params)
    assert {measure.status for measure in result.measures} == {"too_few"}


def test_nulls_are_never_made_of_parts(train):
    with pytest.raises(CellError, match="without a readout"):
        null_cell(train, as_vectors(parts_of_split(train, 3)), NullParams())


def test_parts_are_named_in_the_schema(train, make_vectors_table):
    parts = parts_of_split(train, 3)
    table = make_vectors_table(train.ids, parts.reshape(len(parts), -1))
    assert parts_of(table) == (1, None)
    table = table.cast(vectors_schema(WIDTH, 3, "best_heads"))
    assert parts_of(table) == (3, "best_heads")
    found = PooledVectors.from_table(table, train.ids)
    assert (found.width, found.num_parts, found.readout) == (WIDTH, 3, "best_heads")


def test_readouts_are_registered_with_a_reference():
    assert {"best_heads"} <= {spec.id for spec in READOUTS.all()}
    assert all(spec.reference and spec.summary and spec.version for spec in READOUTS.all())
    with pytest.raises(UnknownNameError, match="best_heads"):
        READOUTS.get("best_head")
