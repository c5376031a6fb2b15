"""The probe with a hidden layer, against PyTorch and scikit-learn."""

from dataclasses import replace
from operator import itemgetter

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from services.prober.tests.conftest import bits_under_threads, targets_table
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from poolbench.errors import CellError
from poolbench.steps.base import given
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes, mlp, task_measures
from poolbench_prober.probing.mlp import SCHEDULE, WEIGHT_DECAYS, batch_size, fit_mlp, train_mlp
from poolbench_prober.probing.models import Problem, fit_converged


def problem(seed: int, num_classes: int = 2, count: int = 900, width: int = 8) -> Problem:
    """Vectors of which no linear function predicts the answers, split 4:1:1: the signs of two columns in one."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, width))
    product = vectors[:, 0] * vectors[:, 1]
    values = np.digitize(product, np.quantile(product, np.arange(1, num_classes) / num_classes))
    rows = dict(
        zip(("train", "dev", "test"), np.split(np.arange(count), [4 * count // 6, 5 * count // 6]), strict=True)
    )
    return Problem(5 * vectors + 3, values if num_classes else product, rows, num_classes, TaskParams(), seed)


def torch_mlp(xor: Problem, hidden: int, weight_decay: float) -> tuple[torch.nn.Sequential, float]:
    """The same recipe from our draws, with PyTorch's layers, losses, gradients and optimizer."""
    train, dev = (xor.rows[name] for name in ("train", "dev"))
    x = torch.from_numpy(StandardScaler().fit(xor.vectors_nD[train]).transform(xor.vectors_nD).astype(np.float32))
    values = xor.values
    if xor.is_regression:
        values = ((values - values[train].mean()) / values[train].std()).astype(np.float32)
    y, rng = torch.from_numpy(values), np.random.default_rng((xor.seed, 6))
    outputs = max(1, xor.num_classes)
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs))
    with torch.no_grad():
        for layer in (net[0], net[2]):
            drawn = (2 * rng.random((layer.in_features + 1, layer.out_features)) - 1) / np.sqrt(layer.in_features)
            layer.weight.copy_(torch.from_numpy(drawn[:-1].T))
            layer.bias.copy_(torch.from_numpy(drawn[-1]))
    schedule = mlp.SCHEDULE
    optimizer = torch.optim.AdamW(net.parameters(), lr=schedule.learning_rate, weight_decay=weight_decay)

    def loss(rows: np.ndarray) -> torch.Tensor:
        if xor.is_regression:
            return torch.nn.MSELoss()(net(x[rows])[:, 0], y[rows]) / 2
        return torch.nn.CrossEntropyLoss()(net(x[rows]), y[rows])

    best, waited, chosen = np.inf, 0, None
    for _ in range(schedule.num_epochs):
        for rows in torch.from_numpy(rng.permutation(len(train))).split(batch_size(len(train))):
            optimizer.zero_grad()
            loss(train[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            now = float(loss(dev))
        if now < best:
            best, waited, chosen = now, 0, {name: value.clone() for name, value in net.state_dict().items()}
        else:
            waited += 1
            if waited >= schedule.patience:
                break
    net.load_state_dict(chosen)
    return net, best


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probes be trained for some epochs only."""
    monkeypatch.setattr(mlp, "SCHEDULE", replace(SCHEDULE, num_epochs=15))


@pytest.mark.usefixtures("few_epochs")
@pytest.mark.parametrize("weight_decay", WEIGHT_DECAYS)
@pytest.mark.parametrize("num_classes", [0, pytest.param(2, marks=pytest.mark.lane(name="simulations")), 5])
def test_from_the_same_draws_every_step_is_that_of_pytorch(num_classes: int, weight_decay: float) -> None:
    xor = problem(4, num_classes, count=420)  # no two epochs are about as good
    train = xor.rows["train"]
    scaled = xor._replace(vectors_nD=StandardScaler().fit(xor.vectors_nD[train]).transform(xor.vectors_nD).astype("f4"))
    ours = train_mlp(scaled, 6, np.arange(num_classes), weight_decay)
    net, best = torch_mlp(xor, 6, weight_decay)
    assert min(ours.dev_losses) == pytest.approx(best, abs=2e-4)
    for layer, (weights, intercepts) in zip((net[0], net[2]), [(w[:-1], w[-1]) for w in ours.layers], strict=True):
        np.testing.assert_allclose(weights.T, layer.weight.detach(), atol=2e-3)
        np.testing.assert_allclose(intercepts, layer.bias.detach(), atol=2e-3)


def test_epoch_and_weight_decay_are_those_with_the_lowest_loss_on_dev() -> None:
    xor = problem(1, count=420)
    net, loss = min((torch_mlp(xor, 6, decay) for decay in WEIGHT_DECAYS), key=itemgetter(1))
    fitted = fit_mlp(xor, 6)
    assert fitted.details["dev_loss"] == pytest.approx(loss, abs=1e-4)
    x = StandardScaler().fit(xor.vectors_nD[xor.rows["train"]]).transform(xor.vectors_nD).astype("f4")
    assert np.mean(net(torch.from_numpy(x)).argmax(dim=1).numpy() == fitted.predicted) > 0.99


def hits(xor: Problem, predicted: np.ndarray) -> float:
    test = xor.rows["test"]
    return float(np.mean(predicted[test] == xor.values[test]))


@pytest.mark.lane(name="simulations")
def test_it_learns_what_no_linear_probe_can_as_well_as_scikit_learn() -> None:
    """Five sets of 1,000 test instances: a difference of .02 is 2 standard errors."""
    ours, theirs, linear = [], [], []
    for seed in range(5):
        xor = problem(seed, count=6000, width=20)
        ours.append(hits(xor, fit_mlp(xor, 20).predicted))
        linear.append(hits(xor, fit_converged(xor, [1.0]).predicted))
        rows = np.concatenate([xor.rows["train"], xor.rows["dev"]])
        scaled = StandardScaler().fit(xor.vectors_nD[xor.rows["train"]]).transform(xor.vectors_nD)
        settings = {"early_stopping": True, "validation_fraction": 0.2, "batch_size": SCHEDULE.batch}
        oracle = MLPClassifier((20,), **settings, n_iter_no_change=SCHEDULE.patience, random_state=seed)
        theirs.append(hits(xor, oracle.fit(scaled[rows], xor.values[rows]).predict(scaled)))
    assert np.mean(linear) < 0.55
    assert np.mean(ours) > max(0.85, np.mean(theirs) - 0.02)


def test_values_are_predicted_too() -> None:
    xor = problem(3, num_classes=0, count=1800)
    xor, test = xor._replace(values=100 * xor.values + 7), xor.rows["test"]
    predicted = fit_mlp(xor, 20).predicted
    assert np.corrcoef(predicted[test], xor.values[test])[0, 1] > 0.9
    assert np.mean((predicted - xor.values)[test] ** 2) < 0.2 * xor.values.var()  # in the unit of the values
    assert abs(np.corrcoef(fit_converged(xor, [1.0]).predicted[test], xor.values[test])[0, 1]) < 0.3


def test_scale_offset_and_columns_that_are_constant_in_train_change_nothing() -> None:
    xor = problem(4, count=300)
    constant = np.where(np.isin(np.arange(300), xor.rows["train"]), 0.1, 9e9)
    vectors = np.column_stack([xor.vectors_nD, constant])
    expected = fit_mlp(xor._replace(vectors_nD=np.column_stack([xor.vectors_nD, np.zeros(300)])), 4)
    assert np.array_equal(fit_mlp(xor._replace(vectors_nD=vectors), 4).predicted, expected.predicted)
    scaled = fit_mlp(xor._replace(vectors_nD=1024 * xor.vectors_nD), 4)
    assert scaled.details["dev_loss"] == pytest.approx(fit_mlp(xor, 4).details["dev_loss"], abs=1e-5)


def test_a_class_that_train_lacks_is_never_predicted() -> None:
    xor = problem(5, num_classes=3, count=300)
    train, dev = xor.rows["train"], xor.rows["dev"]
    values = xor.values.copy()
    values[train[values[train] == 1]] = 2
    fitted = fit_mlp(xor._replace(values=values), 4)
    assert set(fitted.predicted) <= {0, 2}
    only_lacking = xor._replace(values=values, rows={**xor.rows, "dev": dev[values[dev] == 1]})
    with pytest.raises(CellError, match="needs dev instances"):
        fit_mlp(only_lacking, 4)
    with pytest.raises(CellError, match="one label") as error:
        fit_mlp(xor._replace(values=np.zeros(300, dtype=int)), 4)
    assert error.value.status == "one_class"


@pytest.mark.usefixtures("few_epochs")
def test_the_same_bits_under_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    rows = dict(zip(("train", "dev", "test"), np.split(np.arange(400), [200, 300]), strict=True))
    wide = Problem(rng.normal(size=(400, 3072)), rng.normal(size=400), rows, 0, TaskParams(), 0)
    assert len(bits_under_threads(lambda: fit_mlp(wide, 64).predicted)) == 1


def test_a_task_with_a_hidden_layer_has_the_figures_of_any_task_but_code_lengths() -> None:
    xor = problem(6, count=1800)
    splits = np.repeat(["train", "dev", "test"], [1200, 300, 300])
    targets = Targets.from_table(targets_table(xor.values, split=splits))
    params = TaskParams(hidden=20, seeds=(0, 1), num_bootstrap=20)
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(xor.vectors_nD), params)
    rows = {measure.metric: measure for measure in task_measures(probes)}
    assert rows["probe.macro_f1"].value > 0.85
    assert rows["probe.selectivity"].value > 0.25
    assert rows["probe.macro_f1"].details["fits"][0].keys() == {"weight_decay", "epoch", "num_epochs", "dev_loss"}
    assert rows["probe.compression"].status == "not_implemented"
    assert "linear probes" in rows["probe.compression"].reason
    without_dev = Targets.from_table(targets_table(xor.values, split=np.where(splits == "dev", "train", splits)))
    failed = task_measures(TaskProbes.of(without_dev, PooledVectors.from_matrix(xor.vectors_nD), params))
    assert {measure.status for measure in failed} == {"too_few"}


def test_a_linear_probe_is_the_default_and_enters_no_key() -> None:
    assert given(TaskParams(task="pos")) == {"task": "pos"}
    assert given(TaskParams(hidden=20)) == {"hidden": 20}
    with pytest.raises(ValidationError, match="probes of protocol paper are linear; leave it out"):
        TaskParams(protocol="paper", hidden=20)


def test_batches_are_smaller_for_few_rows() -> None:
    assert [batch_size(num_rows) for num_rows in (40, 800, 1600, 2048, 10**6)] == [16, 25, 50, 64, 64]
