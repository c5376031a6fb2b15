"""The common component: numpy's SVD, removal by hand, and what happens where there is none."""

import numpy as np
import pytest

from poolbench.contracts.tables import vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.errors import CellError
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import COMPONENT, PooledVectors, common_component, without_component
from poolbench_prober.service import create
from poolbench_prober.tables import directions_table


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
def artifacts(tmp_path, make_passages, make_vectors_table, plant):
    """Two concepts, whose vectors share a large component that has nothing to do with the labels."""
    store = Artifacts(FolderStore(tmp_path))
    towards = np.eye(24)[5]
    for seed, concept in enumerate(("causation", "contrast")):
        for split, num_pairs in (("train", 60), ("test", 30)):
            table = make_passages(num_pairs, split, seed=seed)
            passages = Passages.from_table(table)
            shared = np.random.default_rng(seed).normal(10, 30, len(passages.ids))
            matrix = plant(passages, 2.0, seed=seed) + np.outer(shared, towards)
            store.write_table(f"{concept}.{split}", table)
            store.write_table(f"{concept}.{split}.X", make_vectors_table(passages.ids, matrix))
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
