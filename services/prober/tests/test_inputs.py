"""Passages, vectors and instances: what is read, matched by id and refused; and their common component."""

import numpy as np
import pyarrow as pa
import pytest
from services.prober.tests.conftest import passages_table, planted_vectors, targets_table, vectors_table
from services.prober.tests.test_probing import PLAIN, found

from poolbench.contracts.tables import vector_column, vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.errors import CellError, InputError
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_prober.inputs.corpus import Passages, control_labels
from poolbench_prober.inputs.instances import instance_vectors
from poolbench_prober.inputs.vectors import COMPONENT, PooledVectors, common_component, joined, without_component
from poolbench_prober.probing import Targets, TaskProbes, task_measures
from poolbench_prober.service import create
from poolbench_prober.tables import directions_table


def test_span_pairs_are_vectors_one_behind_the_other():
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(2, 200, 4))
    first[3] = np.nan
    pair = joined([PooledVectors.from_matrix(first), PooledVectors.from_matrix(second)])
    np.testing.assert_array_equal(pair.matrix_nW[5], np.append(first[5], second[5]))
    assert (pair.width, int(pair.usable.sum()), pair.usable[3]) == (8, 199, False)
    labels = np.where(first[:, 0] > 0, np.where(second[:, 0] > 0, "both", "first"), "none")
    targets = Targets.from_table(targets_table(labels))
    rows = {m.metric: m for m in task_measures(TaskProbes.of(targets, pair, PLAIN))}
    alone = found(targets, np.nan_to_num(first))
    assert rows["probe.accuracy"].value > alone["probe.accuracy"].value + 0.1
    with pytest.raises(InputError, match="same instances"):
        joined([PooledVectors.from_matrix(first), PooledVectors.from_matrix(second[:5])])


MATRIX = np.array([[1.0, 2.0], [3.0, 6.0], [-1.0, 0.0], [5.0, 5.0]])


def test_parts_are_means_of_passages_and_pairs_are_concatenated():
    shards = [vectors_table(["b", "a"], MATRIX[[1, 0]]), vectors_table(["c", "d", "a"], MATRIX[[2, 3, 0]])]
    found = instance_vectors([(("a",),), (("a", "b"),), (("a", "b", "c"),)], shards)
    np.testing.assert_allclose(found.matrix_nW, [[1, 2], [2, 4], [1, 8 / 3]])
    assert found.usable.all() and found.errors == (None,) * 3
    pairs = instance_vectors([(("a", "b"), ("c",)), (("d",), ("d",))], shards)
    np.testing.assert_allclose(pairs.matrix_nW, [[2, 4, -1, 0], [5, 5, 5, 5]])
    assert pairs.width == 4


def test_a_passage_without_a_vector_leaves_out_the_instances_that_need_it():
    failed = vectors_table(["a", "b"], MATRIX[:2], valid=[False, True], status=["no_coverage", None])
    applied = vectors_table(["c"], MATRIX[[2]], applied=[False])
    broken = vectors_table(["n"], np.array([[np.nan, 1.0]]))
    instances = [(("a", "b"),), (("b",),), (("b", "gone"),), (("c",),), (("n",),)]
    found = instance_vectors(instances, [failed, applied, broken])
    assert found.usable.tolist() == [False, True, False, True, False]
    assert found.applied.tolist() == [True, True, False, False, True]
    assert (found.errors[0].status, found.errors[4]) == ("no_coverage", None)
    assert str(found.errors[2]) == "no table holds a vector of passage 'gone'"
    completed = instance_vectors(instances, [failed, vectors_table(["a", "gone"], MATRIX[:2]), applied, broken])
    assert completed.usable.tolist() == [True, True, True, True, False]


def test_rows_and_shards_in_any_order_give_the_same_vectors():
    rng = np.random.default_rng(0)
    names, matrix = [f"p{row}" for row in range(60)], rng.normal(size=(60, 7))
    instances = [(tuple(names[row] for row in rng.permutation(60)[: 1 + row % 4]),) for row in range(50)]
    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(60)
        shards = [order[:25], order[20:50], order[45:]]
        tables = [vectors_table([names[row] for row in rows], matrix[rows]) for rows in shards]
        found.append(instance_vectors(instances, tables[:: 1 if seed else -1]))
    for each in found[1:]:
        np.testing.assert_array_equal(each.matrix_nW, found[0].matrix_nW)
    expected = [np.mean([np.float32(matrix[names.index(name)]) for name in parts[0]], axis=0) for parts in instances]
    np.testing.assert_allclose(found[0].matrix_nW, expected, rtol=1e-5)


def test_shards_that_do_not_fit_are_refused():
    one = [(("a",),)]
    with pytest.raises(InputError, match="1 rows are duplicates"):
        instance_vectors(one, [vectors_table(["a", "a"], MATRIX[:2])])
    with pytest.raises(InputError, match="widths 2 and 3"):
        instance_vectors(one, [vectors_table(["a"], MATRIX[:1]), vectors_table(["b"], np.ones((1, 3)))])
    with pytest.raises(InputError, match="at least one shard"):
        instance_vectors(one, [])


def test_float16_rounds_vectors_and_leaves_out_what_it_cannot_hold():
    vectors = PooledVectors.from_matrix(np.array([[1 / 3, 1e5], [1 / 3, 2.0]])).in_float16()
    assert vectors.usable.tolist() == [False, True]
    assert vectors.matrix_nW[1].tolist() == [float(np.float16(1 / 3)), 2.0]
    assert vector_column(vectors.matrix_nW[1:]).type == pa.list_(pa.float32(), 2)


def test_rows_are_matched_by_id_not_by_order(train, params):
    matrix = planted_vectors(train, 2.0).astype(np.float32)
    table = vectors_table(train.ids, matrix)
    shuffled = table.take(np.random.default_rng(0).permutation(len(train.ids)))
    found = PooledVectors.from_table(shuffled, train.ids)
    np.testing.assert_array_equal(found.matrix_nW, matrix.astype(np.float64))
    with pytest.raises(InputError, match="10 of 120 passages are missing"):
        PooledVectors.from_table(table.slice(10), train.ids)


def test_control_words_are_balanced_between_the_classes(train):
    tasks = control_labels(train.texts, train.labels, 3, seed=0)
    assert len(tasks) == 3
    for word, task in tasks.items():
        assert 0.3 <= task.mean() <= 0.7
        assert abs(task[train.labels == 1].mean() - task[train.labels == 0].mean()) <= 0.15
        assert task[0] == (word in train.texts[0].split())
    assert control_labels(("",) * 4, np.array([1, 0, 1, 0]), 3, 0) == {}


def test_bad_passages_are_refused():
    table = passages_table(3)
    with pytest.raises(InputError, match="unique"):
        Passages.from_table(table.take([0, 0, 1]))
    with pytest.raises(InputError, match="unique"):
        Passages.from_table(table.set_column(0, "passage_id", [[None, "a", "b", "c", "d", "e"]]))
    with pytest.raises(InputError, match="unique"):
        Passages.from_table(table.slice(0, 0))


@pytest.mark.parametrize(
    "labels", [[2] * 6, [0, 1, None, 1, 0, 1], ["0", "1"] * 3, [0.5, 1.0] * 3, [-1, 1] * 3, [300, 1] * 3]
)
def test_labels_are_neither_rounded_nor_parsed(labels):
    table = passages_table(3)
    with pytest.raises(InputError, match="labels must be 0 or 1"):
        Passages.from_table(table.set_column(3, "label", [labels]))


@pytest.mark.parametrize("labels", [[True, False] * 3, [1.0, 0.0] * 3])
def test_truth_values_are_labels(labels):
    table = passages_table(3)
    found = Passages.from_table(table.set_column(3, "label", [labels]))
    np.testing.assert_array_equal(found.labels, [1, 0] * 3)


def table_of(vector):
    direction = common_component([np.array([vector], dtype=float)])
    return directions_table({COMPONENT: direction}, len(vector))


@pytest.mark.parametrize("rows", [(5, 4), (300, 500)])
def test_it_is_the_first_right_singular_vector_of_all_rows(rows):
    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(count, 16)) + 0.3 * shift for shift, count in enumerate(rows, start=1)]
    found = common_component(matrices)
    _, values, vectors = np.linalg.svd(np.vstack(matrices), full_matrices=False)
    assert abs(found.vector @ vectors[0]) == pytest.approx(1, abs=1e-10)
    assert found.raw_norm == pytest.approx(values[0], rel=1e-10)
    failed = np.full((1, 16), np.nan)
    assert abs(common_component([*matrices, failed]).vector @ found.vector) == pytest.approx(1, abs=1e-12)


def test_removal_by_hand():
    vectors = PooledVectors.from_matrix(np.array([[5.0, 0, 1], [3, 4, 2], [4, -3, 7], [np.nan, 0, 0]]))
    found = without_component(vectors, table_of([3, 4, 0]))  # u = (.6, .8, 0); u.v = 3, 5, 0
    np.testing.assert_allclose(found.matrix_nW[:3], [[3.2, -2.4, 1], [0, 0, 2], [4, -3, 7]], atol=1e-6)
    assert found.usable.tolist() == [True, True, True, False]
    opposite = without_component(vectors, table_of([-3, -4, 0]))
    np.testing.assert_allclose(found.matrix_nW[:3], opposite.matrix_nW[:3], atol=1e-12)


@pytest.mark.parametrize(("matrix", "status"), [(np.full((3, 4), np.nan), "failed"), (np.zeros((3, 4)), "collapsed")])
def test_where_there_is_none(matrix, status):
    with pytest.raises(CellError) as caught:
        common_component([matrix])
    assert caught.value.status == status
    table = directions_table({COMPONENT: caught.value}, 4)
    vectors = without_component(PooledVectors.from_matrix(np.ones((3, 4))), table)
    assert not vectors.usable.any()


def test_widths_that_differ_are_typed():
    with pytest.raises(CellError, match="widths 3 and 4") as caught:
        common_component([np.ones((2, 3)), np.ones((2, 4))])
    assert caught.value.status == "failed"
    found = without_component(PooledVectors.from_matrix(np.eye(4)), table_of(np.array([1.0, 0.0])))
    assert not found.usable.any()
    assert {error.status for error in found.errors} == {"failed"} and "width 2" in str(found.errors[0])


@pytest.fixture
def artifacts(tmp_path):
    """Two concepts, whose vectors share a large component that has nothing to do with the labels."""
    store = Artifacts(FolderStore(tmp_path))
    towards = np.eye(24)[5]
    for seed, concept in enumerate(("causation", "contrast")):
        for split, num_pairs in (("train", 60), ("test", 30)):
            table = passages_table(num_pairs, split, seed=seed)
            passages = Passages.from_table(table)
            shared = np.random.default_rng(seed).normal(10, 30, len(passages.ids))
            matrix = planted_vectors(passages, 2.0, seed=seed) + np.outer(shared, towards)
            store.write_table(f"{concept}.{split}", table)
            store.write_table(f"{concept}.{split}.X", vectors_table(passages.ids, matrix))
    return store


def run(artifacts, kind, inputs, outputs, **params):
    task = Task(kind=kind, inputs=inputs, outputs=outputs, params=params)
    create().handlers[kind](task, TaskIO(task, artifacts))


def test_the_tasks(artifacts):
    trains = {f"train/{name}": f"{name}.train.X" for name in ("causation", "contrast")}
    run(artifacts, "prober.component", trains, {"component": "u"})
    stacked = np.vstack([vector_matrix(artifacts.read_table(key)["vector"]) for key in trains.values()])
    first = np.linalg.svd(stacked.astype(np.float64))[2][0]
    assert abs(vector_matrix(artifacts.read_table("u")["vector"])[0] @ first) == pytest.approx(1, abs=1e-6)
    inputs = {f"passages/{split}": f"causation.{split}" for split in ("train", "test")}
    inputs |= {f"{split}/S4_sif/1": f"causation.{split}.X" for split in ("train", "test")}
    outputs = {f"{part}/S4_sif/1": part for part in ("measures", "directions", "scores")}
    run(artifacts, "prober.probe", {**inputs, "component/S4_sif/1": "u"}, outputs, num_bootstrap=50)
    train_only = {role: key for role, key in inputs.items() if "test" not in role}
    run(artifacts, "prober.directions", {**train_only, "component/S4_sif/1": "u"}, {"directions/S4_sif/1": "alone"})
    run(artifacts, "prober.directions", train_only, {"directions/S4_sif/1": "raw"})
    found, alone, raw = (artifacts.read_table(key) for key in ("directions", "alone", "raw"))
    assert found["vector"].equals(alone["vector"]) and not found["vector"].equals(raw["vector"])
    row = found["direction_id"].to_pylist().index("C1")
    assert abs(vector_matrix(found["vector"])[row] @ first) < 1e-5 < abs(vector_matrix(raw["vector"])[row] @ first)
    measures = artifacts.read_table("measures").to_pylist()
    assert {m["status"] for m in measures if m["metric"] in ("d1.auroc", "d1.auroc_test")} == {"ok"}
