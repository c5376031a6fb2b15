"""Instances of a task as means of passages from overlapping shards, their predictions, and what train has seen."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import f1_score

from poolbench.contracts.tables import INSTANCES, table_from_rows, vector_column
from poolbench.errors import InputError
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.instances import instance_vectors
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes, predictions_table, task_measures

PLAIN = TaskParams(c_values=(), num_bootstrap=50, compression=False)
MATRIX = np.array([[1.0, 2.0], [3.0, 6.0], [-1.0, 0.0], [5.0, 5.0]])


def test_parts_are_means_of_passages_and_pairs_are_concatenated(make_vectors_table):
    shards = [make_vectors_table(["b", "a"], MATRIX[[1, 0]]), make_vectors_table(["c", "d", "a"], MATRIX[[2, 3, 0]])]
    found = instance_vectors([(("a",),), (("a", "b"),), (("a", "b", "c"),)], shards)
    np.testing.assert_allclose(found.matrix_nW, [[1, 2], [2, 4], [1, 8 / 3]])
    assert found.usable.all() and found.errors == (None,) * 3
    pairs = instance_vectors([(("a", "b"), ("c",)), (("d",), ("d",))], shards)
    np.testing.assert_allclose(pairs.matrix_nW, [[2, 4, -1, 0], [5, 5, 5, 5]])
    assert pairs.width == 4


def test_a_passage_without_a_vector_leaves_out_the_instances_that_need_it(make_vectors_table):
    failed = make_vectors_table(["a", "b"], MATRIX[:2], valid=[False, True], status=["no_coverage", None])
    applied = make_vectors_table(["c"], MATRIX[[2]], applied=[False])
    broken = make_vectors_table(["n"], np.array([[np.nan, 1.0]]))
    instances = [(("a", "b"),), (("b",),), (("b", "gone"),), (("c",),), (("n",),)]
    found = instance_vectors(instances, [failed, applied, broken])
    assert found.usable.tolist() == [False, True, False, True, False]
    assert found.applied.tolist() == [True, True, False, False, True]
    assert (found.errors[0].status, found.errors[4]) == ("no_coverage", None)
    assert str(found.errors[2]) == "no table holds a vector of passage 'gone'"
    completed = instance_vectors(instances, [failed, make_vectors_table(["a", "gone"], MATRIX[:2]), applied, broken])
    assert completed.usable.tolist() == [True, True, True, True, False]


def test_rows_and_shards_in_any_order_give_the_same_vectors(make_vectors_table):
    rng = np.random.default_rng(0)
    names, matrix = [f"p{row}" for row in range(60)], rng.normal(size=(60, 7))
    instances = [(tuple(names[row] for row in rng.permutation(60)[: 1 + row % 4]),) for row in range(50)]
    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(60)
        shards = [order[:25], order[20:50], order[45:]]
        tables = [make_vectors_table([names[row] for row in rows], matrix[rows]) for rows in shards]
        found.append(instance_vectors(instances, tables[:: 1 if seed else -1]))
    for each in found[1:]:
        np.testing.assert_array_equal(each.matrix_nW, found[0].matrix_nW)
    expected = [np.mean([np.float32(matrix[names.index(name)]) for name in parts[0]], axis=0) for parts in instances]
    np.testing.assert_allclose(found[0].matrix_nW, expected, rtol=1e-5)


def test_shards_that_do_not_fit_are_refused(make_vectors_table):
    one = [(("a",),)]
    with pytest.raises(InputError, match="1 rows are duplicates"):
        instance_vectors(one, [make_vectors_table(["a", "a"], MATRIX[:2])])
    with pytest.raises(InputError, match="widths 2 and 3"):
        instance_vectors(one, [make_vectors_table(["a"], MATRIX[:1]), make_vectors_table(["b"], np.ones((1, 3)))])
    with pytest.raises(InputError, match="at least one shard"):
        instance_vectors(one, [])


def instances(rows):
    return table_from_rows([{"instance_id": f"i{number}", **row} for number, row in enumerate(rows)], INSTANCES)


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([], "unique; got 0"),
        ([{"first": ["a"], "label": "x"}, {"first": [], "label": "y"}], "instance 'i1': first must name one"),
        ([{"first": ["a", "a"], "label": "x"}], "each once"),
        ([{"first": ["a"], "second": ["b"], "label": "x"}, {"first": ["a"], "label": "y"}], "'i1': first and second"),
        ([{"first": None, "label": "x"}], "instance 'i0'"),
    ],
)
def test_bad_instances_are_refused(rows, match):
    with pytest.raises(InputError, match=match):
        Targets.from_table(instances(rows))


def test_a_repeated_or_missing_id_is_refused():
    table = instances([{"first": ["a"], "label": "x"}, {"first": ["b"], "label": "y"}])
    for ids in (["i0", "i0"], ["i0", None]):
        with pytest.raises(InputError, match="unique"):
            Targets.from_table(table.set_column(0, "instance_id", pa.array(ids)))


def seen_task(seed=0):
    """200 instances, 40 of them in test; the passages of test instances 160 to 169 are those of train."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(200) < 0.5, "no", "yes")
    passages = [f"p{row - 160 if 160 <= row < 170 else row}" for row in range(200)]
    splits = ["train"] * 140 + ["dev"] * 20 + ["test"] * 40
    rows = [{"first": [p], "label": y, "split": s} for p, y, s in zip(passages, labels, splits, strict=True)]
    vectors = rng.normal(size=(200, 5)) + 1.2 * (labels == "yes")[:, None]
    return Targets.from_table(instances(rows)), vectors, labels


def test_instances_that_are_whole_in_train_are_counted_and_scored_apart():
    targets, vectors, labels = seen_task()
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(vectors), PLAIN)
    rows = {measure.metric: measure for measure in task_measures(probes)}
    assert rows["probe.seen_share"].value == pytest.approx(10 / 40)
    guess = np.array(targets.classes)[probes.outcomes[0].predicted]
    unseen = rows["probe.macro_f1_unseen"]
    assert unseen.value == pytest.approx(f1_score(labels[170:], guess[170:], average="macro"))
    assert (unseen.n, unseen.num_groups) == (30, 30)
    assert rows["probe.macro_f1"].value == pytest.approx(f1_score(labels[160:], guess[160:], average="macro"))
    table = predictions_table(probes).to_pylist()
    assert {row["instance_id"] for row in table if row["seen"]} == {f"i{row}" for row in range(160, 170)}


def test_a_pair_is_seen_as_a_whole_and_in_its_order():
    parts = [(["a"], ["b"], "train"), (["c"], ["d"], "train"), (["a"], ["b"], "test"), (["b"], ["a"], "test")]
    parts += [(["a"], ["d"], "test"), (["a", "c"], ["b"], "test")]
    rows = [{"first": one, "second": two, "split": split, "label": "x"} for one, two, split in parts]
    targets = Targets.from_table(instances(rows))
    assert targets.seen(np.array([0, 1])).tolist() == [True, True, True, False, False, False]


def test_nothing_unseen_has_no_score():
    targets, vectors, _ = seen_task()
    known = tuple((("same",),) for _ in targets.ids)
    object.__setattr__(targets, "parts", known)
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(vectors), PLAIN)
    rows = {measure.metric: measure for measure in task_measures(probes)}
    assert rows["probe.seen_share"].value == 1
    assert (rows["probe.macro_f1_unseen"].status, rows["probe.macro_f1"].status) == ("too_few", "ok")


def test_predictions_of_dev_and_test_for_every_seed_and_the_instances_left_out():
    targets, vectors, labels = seen_task()
    vectors[[150, 3, 199]] = np.nan
    params = PLAIN.model_copy(update={"seeds": (4, 7)})
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(vectors), params)
    table = predictions_table(probes).to_pylist()
    answered = [row for row in table if row["seed"] is not None]
    assert [(row["seed"], row["split"]) for row in answered] == (
        [(4, "dev")] * 19 + [(4, "test")] * 39 + [(7, "dev")] * 19 + [(7, "test")] * 39
    )
    assert all(row["truth"] == labels[int(row["instance_id"][1:])] for row in table)
    assert all(row["predicted"] in ("no", "yes") and row["control_predicted"] in ("no", "yes") for row in answered)
    left_out = table[len(answered) :]
    assert [(row["instance_id"], row["split"]) for row in left_out] == [
        ("i150", "dev"),
        ("i199", "test"),
        ("i3", "train"),
    ]
    assert {(row["predicted"], row["status"]) for row in left_out} == {(None, "non_finite")}
    measure = next(each for each in task_measures(probes) if each.metric == "probe.left_out")
    assert measure.value == 3 and measure.reason.startswith("3 of 200 instances have no vector, e.g. 'i150'")
    assert measure.details == {"statuses": {"non_finite": 3}}


def test_the_order_of_instances_changes_no_prediction_where_splits_are_given():
    targets, vectors, _ = seen_task()
    order = np.random.default_rng(1).permutation(200)
    params = PLAIN.model_copy(update={"control": None})
    tables = [
        predictions_table(TaskProbes.of(targets.take(rows), PooledVectors.from_matrix(vectors[rows]), params))
        for rows in (np.arange(200), order)
    ]
    assert tables[0].equals(tables[1])


def test_predictions_of_values_are_numbers():
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(100, 4))
    values = vectors[:, 0] + 0.1 * rng.normal(size=100)
    rows = [{"first": [f"p{row}"], "value": value} for row, value in enumerate(values)]
    probes = TaskProbes.of(Targets.from_table(instances(rows)), PooledVectors.from_matrix(vectors), PLAIN)
    table = predictions_table(probes)
    assert table.schema.field("predicted").type == pa.float64()
    test = [row for row in table.to_pylist() if row["split"] == "test"]
    pearson = np.corrcoef([row["truth"] for row in test], [row["predicted"] for row in test])[0, 1]
    measure = next(each for each in task_measures(probes) if each.metric == "probe.pearson")
    assert measure.value == pytest.approx(pearson)


def test_too_many_instances_without_a_vector_rule_the_cell_out(make_vectors_table):
    targets, vectors, _ = seen_task()
    names = sorted({name for parts in targets.parts for name in parts[0]})
    table = make_vectors_table(names[30:], vectors[: len(names) - 30])
    probes = TaskProbes.of(targets, instance_vectors(targets.parts, [table]), PLAIN)
    assert {measure.status for measure in task_measures(probes)} == {"failed"}
    rows = predictions_table(probes).to_pylist()
    assert rows and all("no table holds a vector" in row["reason"] for row in rows)


def test_float16_rounds_vectors_and_leaves_out_what_it_cannot_hold():
    vectors = PooledVectors.from_matrix(np.array([[1 / 3, 1e5], [1 / 3, 2.0]])).in_float16()
    assert vectors.usable.tolist() == [False, True]
    assert vectors.matrix_nW[1].tolist() == [float(np.float16(1 / 3)), 2.0]
    assert vector_column(vectors.matrix_nW[1:]).type == pa.list_(pa.float32(), 2)
