"""Tasks of several classes and of real values, against scikit-learn; their instances from overlapping shards."""

import json

import numpy as np
import pyarrow as pa
import pytest
from services.prober.tests.conftest import instances_table, targets_table, vectors_table
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from poolbench.errors import InputError
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.instances import instance_vectors
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes, models, predictions_table, task_measures
from poolbench_prober.probing.models import accuracy, fit_classifiers, fit_regressions, macro_f1, weighted_pearson

PLAIN = TaskParams(c_values=(), num_bootstrap=50, compression=False)
C_VALUES = TaskParams().c_values


def three_classes(count=300, width=12, shift=2.0, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.arange(count) % 3
    centres = shift * np.eye(3, width)
    vectors = 5 * (rng.normal(size=(count, width)) + centres[codes]) + 30
    splits = np.where(np.arange(count) < 200, "train", np.where(np.arange(count) < 220, "dev", "test"))
    return vectors, np.array(["noun", "verb", "other"])[codes], splits


def found(targets, vectors, params=PLAIN):
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(vectors), params)
    return {m.metric: m for m in task_measures(probes)}


@pytest.mark.parametrize(("num_classes", "c"), [(2, 1.0), (3, 0.01), (3, 1.0), (3, 10.0)])
def test_classifiers_agree_with_scikit_learn_at_tight_tolerance(num_classes, c):
    vectors, labels, _ = three_classes()
    codes = np.unique(labels, return_inverse=True)[1] % num_classes
    (fit,) = fit_classifiers(vectors, codes, num_classes, [c], 1e-6)
    assert fit.converged
    oracle = make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-12, solver="newton-cholesky"))
    expected = oracle.fit(vectors, codes).predict_log_proba(vectors)
    np.testing.assert_allclose(fit.log_probabilities(vectors), expected, atol=1e-4)


def test_ridge_agrees_with_scikit_learn_and_leaves_constant_columns_alone():
    rng = np.random.default_rng(0)
    vectors = 7 * rng.normal(size=(60, 90)) + 3
    vectors[:, 4] = 0.1
    values = vectors[:, 0] + rng.normal(size=60)
    (fit,) = fit_regressions(vectors, values, [0.1], 1e-9)
    oracle = make_pipeline(StandardScaler(), Ridge(alpha=10)).fit(vectors, values)
    np.testing.assert_allclose(fit.scores(vectors)[:, 0], oracle.predict(vectors), rtol=1e-8)
    assert fit.weights_DK[4, 0] == 0


def test_scores_agree_with_scikit_learn_and_numpy_under_any_weights():
    rng = np.random.default_rng(1)
    codes, predicted = rng.integers(0, 4, 50), rng.integers(0, 3, 50)
    weights = rng.integers(0, 3, size=(20, 50))
    for row, ours, hits in zip(
        weights, macro_f1(codes, predicted, weights), accuracy(codes, predicted, weights), strict=True
    ):
        true, guess = np.repeat(codes, row), np.repeat(predicted, row)
        assert ours == pytest.approx(f1_score(true, guess, average="macro"))
        assert hits == pytest.approx(accuracy_score(true, guess))
    x, y = rng.normal(size=50) + 1e3, rng.normal(size=50)
    expected = [np.corrcoef(np.repeat(x, row), np.repeat(y, row))[0, 1] for row in weights]
    np.testing.assert_allclose(weighted_pearson(x, y, weights), expected, atol=1e-10)


def test_classification_agrees_with_scikit_learn_end_to_end():
    vectors, labels, splits = three_classes()
    rows = found(Targets.from_table(targets_table(labels, split=splits)), vectors)
    train, test = splits == "train", splits == "test"
    model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10)).fit(vectors[train], labels[train])
    guess = model.predict(vectors[test])
    assert rows["probe.macro_f1"].value == pytest.approx(f1_score(labels[test], guess, average="macro"))
    assert rows["probe.accuracy"].value == pytest.approx(accuracy_score(labels[test], guess))
    assert rows["probe.macro_f1"].ci_low < rows["probe.macro_f1"].value < rows["probe.macro_f1"].ci_high
    assert (rows["probe.macro_f1"].n, rows["probe.macro_f1"].num_groups) == (80, 80)
    assert rows["probe.selectivity"].value > 0.3
    assert rows["probe.collapsed"].value == 0
    assert rows["probe.macro_f1"].details["fits"][0]["gradient_ratio"] <= 1e-5


def test_regularisation_is_chosen_on_dev():
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(120, 200))
    values = vectors[:, 0] + 2 * rng.normal(size=120)
    splits = np.repeat(["train", "dev", "test"], 40)
    params = TaskParams(c_values=(1e-3, 1.0), num_bootstrap=0)
    rows = found(Targets.from_table(targets_table(values=values, split=splits)), vectors, params)
    dev = splits == "dev"
    fits = fit_regressions(vectors[splits == "train"], values[splits == "train"], [1e-3, 1.0], 1e-6)
    better = int(np.argmax([np.corrcoef(f.scores(vectors[dev])[:, 0], values[dev])[0, 1] for f in fits]))
    assert rows["probe.pearson"].details["fits"][0]["C"] == (1e-3, 1.0)[better]


def drawn_problem(num: int, width: int, num_classes: int, seed: int) -> models.Problem:
    """Classes that a linear function of the vectors makes, with noise; a third of the instances is dev."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((num, width)) * np.arange(1, width + 1) ** -0.5
    scores = vectors @ rng.standard_normal((width, num_classes))
    values = (scores + 0.7 * scores.std() * rng.standard_normal(scores.shape)).argmax(axis=1)
    rows = dict(zip(("train", "dev"), np.split(rng.permutation(num), [2 * num // 3]), strict=True))
    return models.Problem(vectors, values, rows, num_classes, TaskParams(), seed)


@pytest.mark.parametrize(("num", "width", "num_classes"), [(300, 20, 3), (900, 60, 8), (150, 200, 5)])
def test_probes_that_are_left_behind_change_no_choice(
    num: int, width: int, num_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0
    for seed in range(6):
        problem = drawn_problem(num, width, num_classes, seed)
        raced = models.fit_converged(problem, C_VALUES)
        with monkeypatch.context() as patch:
            patch.setattr(models, "_MARGIN", np.inf)
            all_fitted = models.fit_converged(problem, C_VALUES)
        assert raced.details["C"] == all_fitted.details["C"]
        assert np.array_equal(raced.predicted, all_fitted.predicted)
        classes = np.unique(problem.values[problem.rows["train"]])
        probes = models._on_dev(problem, classes, C_VALUES, models._Race(problem, classes))
        left += sum(not probe.linear.converged for probe in probes.values())
    assert left > 0


def test_a_probe_that_was_left_behind_by_mistake_is_fitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = drawn_problem(300, 20, 3, 0)
    expected = models.fit_converged(problem, C_VALUES)
    monkeypatch.setattr(models._Race, "__call__", lambda self, weights, _: np.ones(weights.shape[1], dtype=bool))
    found = models.fit_converged(problem, C_VALUES)
    assert (found.details["C"], found.predicted.tolist()) == (expected.details["C"], expected.predicted.tolist())


def test_a_drawn_split_keeps_groups_whole_in_the_shares_70_10_20():
    groups = np.repeat(np.arange(100), 3)
    targets = Targets.from_table(targets_table(labels=np.arange(300) % 2, group=groups))
    rows = targets.split(seed=4)
    shares = {name: len(found) / 300 for name, found in rows.items()}
    assert shares == pytest.approx({"train": 0.7, "dev": 0.1, "test": 0.2}, abs=0.02)
    members = [set(groups[found]) for found in rows.values()]
    assert sum(map(len, members)) == 100
    assert {name: list(found) for name, found in targets.split(4).items()} == {n: list(f) for n, f in rows.items()}


def test_the_interval_is_a_bootstrap_over_the_groups_of_the_test_split_alone():
    """Drawn over all groups, a resample would hold any number of test groups, often none."""
    vectors, labels, _ = three_classes(shift=1.0)
    splits = np.where(np.arange(300) < 280, "train", "test")
    groups = np.arange(300) // 4
    params = PLAIN.model_copy(update={"num_bootstrap": 400, "control": None})
    rows = found(Targets.from_table(targets_table(labels, split=splits, group=groups)), vectors, params)
    test = splits == "test"
    model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10)).fit(vectors[~test], labels[~test])
    hits = (model.predict(vectors[test]) == labels[test]).reshape(5, 4).mean(axis=1)
    draws = np.random.default_rng(0).integers(0, 5, size=(400, 5))
    expected = np.percentile(hits[draws].mean(axis=1), [2.5, 97.5])
    measure = rows["probe.accuracy"]
    assert (measure.ci_low, measure.ci_high) == pytest.approx(tuple(expected))
    assert measure.num_groups == 5


def test_several_seeds_are_averaged():
    vectors, labels, _ = three_classes(shift=1.0)
    targets = Targets.from_table(targets_table(labels))
    each = [found(targets, vectors, PLAIN.model_copy(update={"seeds": (s,)}))["probe.macro_f1"].value for s in (1, 2)]
    both = found(targets, vectors, PLAIN.model_copy(update={"seeds": (1, 2)}))["probe.macro_f1"]
    assert both.details["values"] == pytest.approx(each)
    assert both.value == pytest.approx(np.mean(each))


def test_word_identity_has_no_selectivity_and_a_property_of_the_context_has():
    rng = np.random.default_rng(5)
    types = rng.integers(0, 30, 600)
    identity = np.eye(30)[types]
    tag_of = rng.integers(0, 3, 30)
    params = PLAIN.model_copy(update={"control": "word_type"})
    words = [f"w{number}" for number in types]
    by_word = Targets.from_table(targets_table(tag_of[types], word=words))
    rows = found(by_word, identity + 0.01 * rng.normal(size=identity.shape), params)
    assert rows["probe.accuracy"].value > 0.95
    assert abs(rows["probe.selectivity"].value) < 0.1  # a memory for words does as well on control labels
    tags = rng.integers(0, 3, 600)
    context = np.hstack([identity * 0, 3 * np.eye(3)[tags]]) + rng.normal(size=(600, 33))
    rows = found(Targets.from_table(targets_table(tags, word=words)), context, params)
    assert rows["probe.selectivity"].value > 0.3


def test_a_probe_that_predicts_one_value_is_flagged():
    rng = np.random.default_rng(7)
    vectors = 1e-3 * rng.normal(size=(200, 3))
    labels = np.where(np.arange(200) % 10 == 0, "rare", "common")
    splits = np.where(np.arange(200) < 150, "train", "test")
    params = PLAIN.model_copy(update={"primary_c": 1e-6})
    rows = found(Targets.from_table(targets_table(labels, split=splits)), vectors, params)
    assert rows["probe.collapsed"].value == 1
    assert rows["probe.macro_f1"].value == pytest.approx(45 / 95)  # F1 of the common class 90/95, of the rare one 0
    assert rows["probe.macro_f1"].reason.startswith("collapsed")


def statuses(rows):
    return {measure.status for measure in rows.values()}


def test_what_cannot_be_probed_is_null_with_its_reason():
    vectors, labels, splits = three_classes()
    targets = Targets.from_table(targets_table(labels, split=splits))
    assert statuses(found(targets, np.ones_like(vectors))) == {"collapsed"}
    broken = vectors.copy()
    broken[:60] = np.nan
    assert statuses(found(targets, broken)) == {"non_finite"}
    broken[3:60] = vectors[3:60]
    assert found(targets, broken)["probe.macro_f1"].status == "ok"
    one = np.where(splits == "train", "noun", labels)
    assert statuses(found(Targets.from_table(targets_table(one, split=splits)), vectors)) == {"one_class"}
    no_test = np.where(splits == "test", "dev", splits)
    assert statuses(found(Targets.from_table(targets_table(labels, split=no_test)), vectors)) == {"too_few"}
    unseen = labels.copy()
    unseen[-1] = "never trained on"
    rows = found(Targets.from_table(targets_table(unseen, split=splits)), vectors)
    assert rows["probe.macro_f1"].value < found(targets, vectors)["probe.macro_f1"].value
    rng = np.random.default_rng(8)
    vectors, values = rng.normal(size=(60, 4)), rng.normal(size=60)
    splits = np.where(np.arange(60) < 40, "train", "test")
    values[40:] = 3.0
    rows = found(Targets.from_table(targets_table(values=values, split=splits)), vectors)
    assert (rows["probe.pearson"].status, rows["probe.selectivity"].status) == ("one_class", "collapsed")
    assert rows["probe.collapsed"].value == 0


def test_bad_targets_are_refused():
    for ids in (["i0", "i0"], ["i0", None]):
        with pytest.raises(InputError, match="unique"):
            Targets.from_table(targets_table([0, 1]).set_column(0, "instance_id", pa.array(ids)))
    with pytest.raises(InputError, match="every instance a value"):
        Targets.from_table(targets_table(values=[1.0, None, 2.0]))
    with pytest.raises(InputError, match="1 of 3 values are not finite"):
        Targets.from_table(targets_table(values=[1.0, np.inf, 2.0]))
    with pytest.raises(InputError, match=r"split must be one of train, dev, test.*got valid"):
        Targets.from_table(targets_table([0, 1], split=["train", "valid"]))
    with pytest.raises(InputError, match=r"groups lie in several splits \(1 times\)"):
        Targets.from_table(targets_table([0, 1, 0], split=["train", "test", "test"], group=["a", "a", "b"]))
    words = targets_table([0, 1]).set_column(4, "value", [["long", "short"]]).set_column(3, "label", [[None, None]])
    with pytest.raises(InputError, match="must be numbers"):
        Targets.from_table(words)
    with pytest.raises(InputError, match="word of every instance"):
        found(
            Targets.from_table(targets_table([0, 1] * 20)),
            np.random.default_rng(0).normal(size=(40, 3)),
            PLAIN.model_copy(update={"control": "word_type"}),
        )


def test_figures_are_json_and_do_not_depend_on_the_order_of_the_classes():
    vectors, labels, splits = three_classes()
    rows = found(Targets.from_table(targets_table(labels, split=splits)), vectors)
    json.dumps([measure.to_row() for measure in rows.values()], allow_nan=False)
    renamed = np.char.replace(labels, "noun", "z")
    again = found(Targets.from_table(targets_table(renamed, split=splits)), vectors)
    assert again["probe.macro_f1"].value == pytest.approx(rows["probe.macro_f1"].value)


def test_a_control_task_that_cannot_be_fitted_takes_the_selectivity_down_alone():
    """All instances have one word type: its control labels are one class."""
    vectors, labels, splits = three_classes()
    table = targets_table(labels, split=splits, word=["the"] * len(labels))
    rows = found(Targets.from_table(table), vectors, PLAIN.model_copy(update={"control": "word_type"}))
    assert rows["probe.selectivity"].status == "one_class"
    assert rows["probe.macro_f1"].value > 0.8
    assert rows["probe.accuracy"].status == rows["probe.collapsed"].status == "ok"


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
        Targets.from_table(instances_table(rows))


def seen_task(seed=0):
    """200 instances, 40 of them in test; the passages of test instances 160 to 169 are those of train."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(200) < 0.5, "no", "yes")
    passages = [f"p{row - 160 if 160 <= row < 170 else row}" for row in range(200)]
    splits = ["train"] * 140 + ["dev"] * 20 + ["test"] * 40
    rows = [{"first": [p], "label": y, "split": s} for p, y, s in zip(passages, labels, splits, strict=True)]
    vectors = rng.normal(size=(200, 5)) + 1.2 * (labels == "yes")[:, None]
    return Targets.from_table(instances_table(rows)), vectors, labels


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
    targets, vectors, _ = seen_task()
    known = tuple((("same",),) for _ in targets.ids)
    object.__setattr__(targets, "parts", known)
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(vectors), PLAIN)
    rows = {measure.metric: measure for measure in task_measures(probes)}
    assert rows["probe.seen_share"].value == 1
    assert (rows["probe.macro_f1_unseen"].status, rows["probe.macro_f1"].status) == ("too_few", "ok")


def test_a_pair_is_seen_as_a_whole_and_in_its_order():
    parts = [(["a"], ["b"], "train"), (["c"], ["d"], "train"), (["a"], ["b"], "test"), (["b"], ["a"], "test")]
    parts += [(["a"], ["d"], "test"), (["a", "c"], ["b"], "test")]
    rows = [{"first": one, "second": two, "split": split, "label": "x"} for one, two, split in parts]
    targets = Targets.from_table(instances_table(rows))
    assert targets.seen(np.array([0, 1])).tolist() == [True, True, True, False, False, False]


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
    probes = TaskProbes.of(Targets.from_table(instances_table(rows)), PooledVectors.from_matrix(vectors), PLAIN)
    table = predictions_table(probes)
    assert table.schema.field("predicted").type == pa.float64()
    test = [row for row in table.to_pylist() if row["split"] == "test"]
    pearson = np.corrcoef([row["truth"] for row in test], [row["predicted"] for row in test])[0, 1]
    measure = next(each for each in task_measures(probes) if each.metric == "probe.pearson")
    assert measure.value == pytest.approx(pearson)


def test_too_many_instances_without_a_vector_rule_the_cell_out():
    targets, vectors, _ = seen_task()
    names = sorted({name for parts in targets.parts for name in parts[0]})
    table = vectors_table(names[30:], vectors[: len(names) - 30])
    probes = TaskProbes.of(targets, instance_vectors(targets.parts, [table]), PLAIN)
    assert {measure.status for measure in task_measures(probes)} == {"failed"}
    rows = predictions_table(probes).to_pylist()
    assert rows and all("no table holds a vector" in row["reason"] for row in rows)
