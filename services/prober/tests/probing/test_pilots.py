"""Pilots: samples and folds, answers against scikit-learn and against a task, noise, and what cannot be probed."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from services.prober.tests.conftest import targets_table, vectors_table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from poolbench.contracts.tables import PILOT_ANSWERS
from poolbench.errors import CellError, InputError
from poolbench.statuses import Status
from poolbench.steps import prober as steps
from poolbench.steps.prober import PilotParams, TaskParams
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes, pilot_answers, predictions_table
from poolbench_prober.probing.compression import dealt_folds
from poolbench_prober.probing.pilots import folds_of
from poolbench_prober.service import ProberService

C_VALUES = PilotParams(sizes=(1,)).c_values


def classes(count=240, num_classes=2, width=8, shift=0.9, seed=0, group_size=1):
    """Targets with several classes, in groups that mix them, and vectors that hold most of them."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(count) % num_classes)
    vectors = 3 * (rng.normal(size=(count, width)) + shift * np.eye(num_classes, width)[codes]) + 10
    names = tuple("abcdef"[:num_classes])
    targets = Targets(tuple(f"i{row:04}" for row in range(count)), names, codes, np.arange(count) // group_size)
    return targets, vectors


def answers(targets, vectors, **params):
    params = {"sizes": (len(targets.ids),), "seeds": (0,), **params}
    return pilot_answers(targets, PooledVectors.from_matrix(vectors), PilotParams(**params))


def rights(table, **where):
    """Whether each instance was right, of the rows with these values."""
    return {
        row["instance_id"]: row["right"]
        for row in table.to_pylist()
        if all(row[name] == value for name, value in where.items())
    }


@pytest.mark.parametrize("group_size", [1, 3])
def test_each_instance_is_test_once_and_train_in_four_of_six_folds(group_size):
    targets, _ = classes(240, group_size=group_size)
    params = PilotParams(sizes=(60, 120, 240), seeds=(0, 1))
    samples = {}
    for seed in params.seeds:
        counts = {size: {split: Counter() for split in ("train", "dev", "test")} for size in params.sizes}
        for fold in folds_of(targets, params, seed):
            parts = [set(targets.groups[rows]) for rows in fold.rows.values()]
            assert sum(map(len, parts)) == len(set.union(*parts))  # no group parts
            for split, rows in fold.rows.items():
                counts[fold.size][split].update(rows.tolist())
            assert len(fold.rows["test"]) == pytest.approx(fold.size / 6, abs=2 * group_size)
            labels = targets.values[fold.rows["train"]]
            assert np.mean(labels) == pytest.approx(0.5, abs=0.2)
        for size, of_split in counts.items():
            assert set(of_split["test"].values()) == set(of_split["dev"].values()) == {1}
            assert set(of_split["train"].values()) == {4}
            assert len(of_split["test"]) == pytest.approx(size, abs=group_size)
        sizes = [set(counts[size]["test"]) for size in params.sizes]
        assert sizes[0] < sizes[1] < sizes[2]
        samples[seed] = sizes[0]
    assert samples[0] != samples[1]


@pytest.mark.parametrize("num_classes", [2, 4])
def test_answers_are_those_of_scikit_learn(num_classes):
    """The same folds, fitted by an independent implementation, with the C of the best macro-F1 on dev."""
    targets, vectors = classes(300, num_classes)
    params = PilotParams(sizes=(100, 300), seeds=(0, 1))
    table = answers(targets, vectors, sizes=params.sizes, seeds=params.seeds)
    assert table.schema.equals(PILOT_ANSWERS)
    differing, compared = 0, 0
    for seed in params.seeds:
        for fold in folds_of(targets, params, seed):
            train, dev, test = (fold.rows[split] for split in ("train", "dev", "test"))
            probes = [
                make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-10, max_iter=10_000)).fit(
                    vectors[train], targets.values[train]
                )
                for c in C_VALUES
            ]
            on_dev = [f1_score(targets.values[dev], probe.predict(vectors[dev]), average="macro") for probe in probes]
            best = probes[int(np.argmax(on_dev))]
            expected = best.predict(vectors[test]) == targets.values[test]
            right = rights(table, seed=seed, size=fold.size, fold=fold.number)
            assert list(right) == [targets.ids[row] for row in test]
            differing += int((np.array(list(right.values())) != expected).sum())
            compared += len(test)
    assert compared == 2 * 400 and differing <= 0.005 * compared


def test_two_pilots_are_paired_and_an_order_of_the_table_changes_nothing():
    targets, vectors = classes()
    one = answers(targets, vectors, sizes=(120, 240), seeds=(0, 1))
    other = answers(targets, vectors[:, :1], sizes=(120, 240), seeds=(0, 1))
    keys = ["seed", "size", "fold", "num_train", "num_dev", "instance_id"]
    assert one.select(keys).equals(other.select(keys)) and not one["right"].equals(other["right"])
    order = np.random.default_rng(0).permutation(len(vectors))
    again = answers(targets.take(order), vectors[order], sizes=(120, 240), seeds=(0, 1), noise=0.5, label_noise=0.1)
    assert again.equals(answers(targets, vectors, sizes=(120, 240), seeds=(0, 1), noise=0.5, label_noise=0.1))


def test_noise_on_states_and_on_labels_costs_accuracy():
    targets, vectors = classes(600, shift=1.5)

    def accuracy(**params):
        right = list(rights(answers(targets, vectors, **params), seed=0).values())
        return np.mean(right)

    clean = accuracy()
    assert clean > 0.82
    assert accuracy(noise=1e-6) == pytest.approx(clean, abs=0.01)
    assert accuracy(noise=9.0) < clean - 0.1
    assert accuracy(label_noise=0.3) < clean - 0.01
    assert accuracy(label_noise=1.0) == pytest.approx(1 - clean, abs=0.03)  # of two classes always the other one


@pytest.mark.lane(name="simulations")
def test_a_hidden_layer_sees_what_no_line_does():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(900, 4))
    codes = (vectors[:, 0] * vectors[:, 1] > 0).astype(int)
    targets = Targets(tuple(f"i{row:04}" for row in range(900)), ("a", "b"), codes, np.arange(900))
    linear, hidden = (rights(answers(targets, vectors, **params), seed=0) for params in ({}, {"hidden": 16}))
    assert np.mean(list(linear.values())) < 0.6 and np.mean(list(hidden.values())) > 0.85


def torch_search(vectors, values, rows, hidden, seed):
    """The search of the reference with PyTorch's layers, loss, gradients and Adam, from the same random numbers."""
    x, y = torch.from_numpy(vectors.astype(np.float32)), torch.from_numpy(values.astype(np.int64))
    train, dev = (torch.from_numpy(rows[name]) for name in ("train", "dev"))
    widths = [x.shape[1], *filter(None, [hidden]), int(y.max()) + 1]
    trials = []
    for rate in (1e-4, 5e-4, 1e-3, 5e-3, 1e-2):
        for batch in (8, 16, 32, 64):
            rng = np.random.default_rng((seed, 7))
            layers = [torch.nn.Linear(*shape) for shape in pairwise(widths)]
            for layer in layers:
                inputs, outputs = layer.in_features, layer.out_features
                first = ((2 * rng.random((inputs + 1, outputs)) - 1) / np.sqrt(inputs)).astype(np.float32)
                layer.weight.data = torch.from_numpy(first[:-1].T.copy())
                layer.bias.data = torch.from_numpy(first[-1].copy())
            probe = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())][:-1])
            optimizer = torch.optim.Adam(probe.parameters(), lr=rate)
            best, waited = (np.inf, None), 0
            for _ in range(50):
                for chosen in torch.from_numpy(rng.permutation(len(train))).split(batch):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(probe(x[train[chosen]]), y[train[chosen]]).backward()
                    optimizer.step()
                with torch.no_grad():
                    outputs = probe(x)
                    loss = float(torch.nn.functional.cross_entropy(outputs[dev], y[dev]))
                best, waited = ((loss, outputs.argmax(1)), 0) if loss < best[0] else (best, waited + 1)
                if waited == 5:
                    break
            accuracy = float((best[1][dev] == y[dev]).float().mean())
            trials.append((-accuracy, best[0], best[1].numpy()))
    return min(trials, key=lambda trial: trial[:2])[2]


@pytest.mark.parametrize(("num_classes", "hidden"), [(2, None), (3, 20)])
def test_published_probes_are_the_best_of_a_search_with_pytorch(num_classes, hidden):
    targets, vectors = classes(96, num_classes, shift=0.5)
    params = {"protocol": "published", "folds": 3, "hidden": hidden}
    table = answers(targets, vectors, **params)
    for fold in folds_of(targets, PilotParams(sizes=(96,), seeds=(0,), **params), 0):
        predicted = torch_search(vectors, targets.values, fold.rows, hidden, 0)
        expected = {targets.ids[row]: predicted[row] == targets.values[row] for row in fold.rows["test"]}
        assert rights(table, fold=fold.number) == expected


def test_a_code_length_chooses_the_regularisation_and_class_frequencies_where_vectors_say_nothing():
    """The code of held-out training labels by scikit-learn's probes; dev says nothing."""
    targets, vectors = classes(240)
    table = answers(targets, vectors, code_length=True)
    for fold in folds_of(targets, PilotParams(sizes=(240,), seeds=(0,)), 0):
        rows = fold.rows["train"]
        inner, labels, groups = vectors[rows], targets.values[rows], targets.groups[rows]
        folds = dealt_folds(labels, groups, 0)
        costs = {}
        for c in TaskParams().compression_c:
            probes = [
                (made_pipeline(c).fit(inner[folds != number], labels[folds != number]), folds == number)
                for number in np.unique(folds)
            ]
            costs[c] = sum(log_loss(labels[held], probe.predict_proba(inner[held]), normalize=False, labels=[0, 1])
                           for probe, held in probes)  # fmt: skip
        best = min(costs, key=costs.get)
        probe = made_pipeline(best).fit(inner, labels)
        expected = {
            targets.ids[row]: probe.predict(vectors[[row]])[0] == targets.values[row] for row in fold.rows["test"]
        }
        assert rights(table, fold=fold.number) == expected
    noise = np.random.default_rng(1).normal(size=vectors.shape)
    (one,) = {tuple(np.unique(list(rights(answers(targets, noise, code_length=True), fold=0).values())))}
    assert len(one) == 2  # one class is predicted, which half of the test instances have


def made_pipeline(c):
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-10, max_iter=10_000))


def test_one_fold_is_the_task_of_the_set_itself():
    targets, vectors = classes(300, 3)
    splits = np.where(np.arange(300) % 10 < 7, "train", np.where(np.arange(300) % 10 < 8, "dev", "test"))
    targets = Targets(targets.ids, targets.classes, targets.values, targets.groups, splits)
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(vectors), TaskParams(compression=False, control=None))
    rows = [row for row in predictions_table(probes).to_pylist() if row["split"] == "test"]
    expected = {row["instance_id"]: row["truth"] == row["predicted"] for row in rows}
    table = answers(targets, vectors, folds=1)
    assert rights(table) == expected and table["num_train"][0].as_py() == 210


def test_instances_and_folds_that_cannot_be_probed_have_the_reason():
    targets, vectors = classes()
    errors = [None] * 240
    errors[7] = CellError(Status.FAILED, "the passage has 9000 tokens")
    vectors[7] = np.nan
    usable = np.isfinite(vectors).all(axis=1)
    pooled = PooledVectors(vectors, usable, usable, tuple(errors))
    table = pilot_answers(targets, pooled, PilotParams(sizes=(240,), seeds=(0,)))
    (row,) = (row for row in table.to_pylist() if row["right"] is None)
    assert (row["instance_id"], row["status"]) == ("i0007", "failed") and "9000" in row["reason"]
    assert table["right"].null_count == 1 and set(table["num_train"].to_pylist()) == {159, 160}
    targets, vectors = classes(24)
    few = answers(targets, vectors, sizes=(6, 24))
    by_size = {size: [row for row in few.to_pylist() if row["size"] == size] for size in (6, 24)}
    assert {row["status"] for row in by_size[6]} == {"too_few"} and "take larger sizes" in by_size[6][0]["reason"]
    assert {row["status"] for row in by_size[24]} == {None}
    rare = Targets(targets.ids, ("a", "b"), np.array([1] + [0] * 23), targets.groups)
    one_class = [row for row in answers(rare, vectors).to_pylist() if row["status"]]
    assert {row["status"] for row in one_class} == {"one_class"}
    assert "training instances of a fold have the label 'a'" in one_class[0]["reason"]
    same = answers(targets, np.ones_like(vectors))
    assert set(same["status"].to_pylist()) == {"collapsed"}


def test_values_and_sizes_above_the_set_are_refused():
    targets, vectors = classes()
    with pytest.raises(InputError, match="sizes up to 241 of 240 instances"):
        answers(targets, vectors, sizes=(100, 241))
    values = Targets(targets.ids, (), targets.values * 1.0, targets.groups)
    with pytest.raises(InputError, match="needs labels"):
        answers(values, vectors)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"seeds": (1, 1)}, r"seeds \[1, 1\]: name each once"),
        ({"sizes": (5, 5)}, r"sizes \[5, 5\]: name each once"),
        ({"folds": 2}, "three folds at least"),
        ({"noise": -1.0}, "greater than or equal to 0"),
        ({"label_noise": 1.5}, "less than or equal to 1"),
        ({"hidden": 0}, "greater than or equal to 1"),
    ],
)
def test_params_that_would_count_twice_or_cannot_be(params, message):
    with pytest.raises(ValueError, match=message):
        PilotParams(**{"sizes": (10,), **params})


def test_the_task_writes_the_answers_of_each_cell(tmp_path):
    targets, vectors = classes(120)
    artifacts = Artifacts(open_store(str(tmp_path)))
    passages = [f"p{row}" for row in range(120)]
    instances = targets_table([targets.classes[code] for code in targets.values])
    artifacts.write_table("instances", instances.set_column(0, "instance_id", pa.array(targets.ids)))
    artifacts.write_table("whole", vectors_table(passages, vectors.astype(np.float32)))
    artifacts.write_table("narrow", vectors_table(passages, vectors[:, :1].astype(np.float32)))
    params = PilotParams(task="set", sizes=(60, 120), seeds=(0, 1))
    inputs = {"instances": "instances", "vectors/A1_mean/1/0": "whole", "vectors/A1_mean/2/0": "narrow"}
    task = steps.PILOT.task(params, inputs, ["answers/A1_mean/1", "answers/A1_mean/2"])
    ProberService().pilot(task, TaskIO(task, artifacts))
    first, second = (artifacts.read_table(task.outputs[f"answers/A1_mean/{layer}"]) for layer in (1, 2))
    expected = answers(targets, vectors.astype(np.float32).astype(float), sizes=(60, 120), seeds=(0, 1))
    assert first.equals(expected) and not second.equals(expected)
    assert (first.schema.metadata[b"width"], second.schema.metadata[b"width"]) == (b"8", b"1")
    renamed = params.model_copy(update={"task": "another name"})
    assert steps.PILOT.key("answers/A1_mean/1", renamed, inputs) == task.outputs["answers/A1_mean/1"]
    later = PilotParams(task="set", sizes=(60, 120), seeds=(0, 1), noise=0.1)
    assert steps.PILOT.key("answers/A1_mean/1", later, inputs) != task.outputs["answers/A1_mean/1"]
