"""The published recipes against PyTorch: the same steps from the same draws, and the same scores from others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from services.prober.tests.conftest import bits_under_threads, targets_table
from services.prober.tests.test_probing import found
from sklearn.metrics import f1_score
from transformers import get_linear_schedule_with_warmup

from poolbench.errors import CellError
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes
from poolbench_prober.probing.models import Problem
from poolbench_prober.probing.published import PAPER, RECIPES, RELEASED, fit, train_probe
from poolbench_prober.probing.training import Schedule, cross_entropy, cross_entropy_of_softmax, smooth_l1

pytestmark = pytest.mark.lane(name="series")

PARAMS = {name: TaskParams(protocol=name, compression=False, num_bootstrap=0) for name in RECIPES}


class Draws:
    """The random numbers of our probe, in its order."""

    def __init__(self, seed):
        self.rng = np.random.default_rng((seed, 2))

    def first(self, width, outputs):
        found = ((2 * self.rng.random((width + 1, outputs)) - 1) / np.sqrt(width)).astype(np.float32)
        return torch.from_numpy(found[:-1].T.copy()), torch.from_numpy(found[-1].copy())

    def order(self, count):
        return torch.from_numpy(self.rng.permutation(count))

    def kept(self, shape, dropout):
        return torch.from_numpy((self.rng.random(shape, dtype=np.float32) >= dropout).astype(np.float32))


class TorchDraws:
    """PyTorch's own random numbers."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def first(self, width, outputs):
        bound = width**-0.5
        sides = torch.empty(outputs, width), torch.empty(outputs)
        return [side.uniform_(-bound, bound, generator=self.generator) for side in sides]

    def order(self, count):
        return torch.randperm(count, generator=self.generator)

    def kept(self, shape, dropout):
        return (torch.rand(shape, generator=self.generator) >= dropout).float()


def torch_probe(problem, recipe, draws):
    """The loop of the released code on one linear layer: PyTorch's losses, optimizers and gradients."""
    schedule = recipe.schedule
    train, dev = (problem.rows[name] for name in ("train", "dev"))
    x = torch.from_numpy(problem.vectors_nD.astype(np.float32))
    y = torch.from_numpy(problem.values.astype(np.float32 if problem.is_regression else np.int64))
    layer = torch.nn.Linear(x.shape[1], max(1, problem.num_classes))
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), draws.first(*layer.weight.shape[::-1]), strict=True):
            parameter.copy_(value)
    make = torch.optim.AdamW if schedule.weight_decay else torch.optim.Adam
    optimizer = make(layer.parameters(), lr=schedule.learning_rate)
    num_steps = 20 * -(-len(train) // schedule.batch)
    rates = get_linear_schedule_with_warmup(optimizer, 0.1 * num_steps, num_steps)

    def loss(outputs, targets):
        if problem.is_regression:
            return torch.nn.SmoothL1Loss()(outputs[:, 0], targets)
        outputs = torch.nn.Softmax(dim=1)(outputs) if recipe is RELEASED else outputs
        return torch.nn.CrossEntropyLoss()(outputs, targets)

    best, waited, chosen = np.inf, 0, None
    for _ in range(20):
        order = draws.order(len(train))
        for rows in order.split(schedule.batch):
            batch = x[train][rows]
            outputs = layer(batch * draws.kept(batch.shape, 0.2) / 0.8)
            optimizer.zero_grad()
            loss(outputs, y[train][rows]).backward()
            optimizer.step()
            rates.step()
        with torch.no_grad():
            now = float(loss(layer(x[dev]), y[dev]))
        if now < best:
            best, waited, chosen = now, 0, {name: value.clone() for name, value in layer.state_dict().items()}
        else:
            waited += 1
            if schedule.patience is not None and waited >= schedule.patience:
                break
    return chosen["weight"].numpy(), chosen["bias"].numpy(), best


def problem(seed, classes=2, count=300, width=12, recipe="released", shift=0.5):
    """Vectors with shifted classes, or a linear value where `classes` is 0; 70/10/20."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, width)) * np.exp(rng.normal(size=width))
    if classes:
        values = rng.integers(0, classes, count)
        vectors += shift * rng.normal(size=(classes, width))[values]
    else:
        values = vectors @ rng.normal(size=width) / width + rng.normal(size=count)
    ends = [int(0.7 * count), int(0.8 * count)]
    rows = dict(zip(("train", "dev", "test"), np.split(np.arange(count), ends), strict=True))
    return Problem(vectors, values, rows, classes, PARAMS[recipe], seed)


@pytest.mark.parametrize("classes", [0, 2, 5])
@pytest.mark.parametrize("recipe", ["released", "paper"])
def test_from_the_same_draws_every_step_is_that_of_pytorch(classes, recipe):
    given = problem(1, classes, recipe=recipe)
    ours = train_probe(given, RECIPES[recipe])
    weight, bias, best = torch_probe(given, RECIPES[recipe], Draws(1))
    (layer,) = ours.layers
    np.testing.assert_allclose(layer[:-1].T, weight, atol=2e-5)
    np.testing.assert_allclose(layer[-1], bias, atol=2e-5)
    assert min(ours.dev_losses) == pytest.approx(best, abs=1e-6)


def macro_f1(given, predicted):
    test = given.rows["test"]
    return f1_score(given.values[test], predicted[test], average="macro")


@pytest.mark.parametrize("recipe", [pytest.param("released", marks=pytest.mark.lane(name="simulations")), "paper"])
def test_from_other_draws_scores_agree_with_pytorch_within_two_standard_errors_on_ten_sets(recipe):
    """Five seeds of each side, others on each set: the mean difference over the sets, and that of every single set."""
    differences, distances = np.empty((2, 10))
    for number in range(10):
        given = problem(100 + number, classes=2 + number % 3, count=600, shift=0.5 + 0.1 * number, recipe=recipe)
        scores = np.empty((2, 5))
        for draw in range(5):
            seeded = given._replace(seed=5 * number + draw)
            scores[0, draw] = macro_f1(given, fit(seeded).predicted)
            weight, bias, _ = torch_probe(seeded, RECIPES[recipe], TorchDraws(seeded.seed))
            scores[1, draw] = macro_f1(given, (given.vectors_nD @ weight.T + bias).argmax(axis=1))
        differences[number] = scores[0].mean() - scores[1].mean()
        distances[number] = abs(differences[number]) / np.sqrt(scores.var(axis=1, ddof=1).sum() / 5)
    assert abs(differences.mean()) <= 2 * differences.std(ddof=1) / np.sqrt(10)
    assert distances.max() < 3.83  # Student's t with 8 degrees of freedom, .05 over ten sets on two sides


@pytest.mark.parametrize("loss", [cross_entropy, cross_entropy_of_softmax])
def test_gradients_are_those_of_finite_differences(loss):
    rng = np.random.default_rng(0)
    outputs, codes = rng.normal(size=(6, 4)), rng.integers(0, 4, 6)
    losses, gradient = loss(outputs, codes)
    for row, column in np.ndindex(outputs.shape):
        moved = outputs.copy()
        moved[row, column] += 1e-6
        assert (loss(moved, codes)[0][row] - losses[row]) / 1e-6 == pytest.approx(gradient[row, column], abs=1e-5)


def test_losses_by_hand():
    assert cross_entropy(np.zeros((1, 4)), np.array([2]))[0] == pytest.approx(np.log(4))
    assert cross_entropy_of_softmax(np.zeros((1, 2)), np.array([0]))[0] == pytest.approx(np.log(2))
    # A sure and right answer has the probabilities 1 and 0, and a second softmax of these: log(1 + 1 / e).
    sure = cross_entropy_of_softmax(np.array([[50.0, -50.0]]), np.array([0]))[0]
    assert sure == pytest.approx(np.log(1 + np.exp(-1)))
    assert 1 / sure == pytest.approx(3.192, abs=5e-4)  # bits over nats of two classes: n log2 2 / (n log(1 + 1 / e))
    losses, gradient = smooth_l1(np.array([[0.5], [3.0]]), np.array([0.0, 5.0]))
    np.testing.assert_allclose(losses, [0.125, 1.5])
    np.testing.assert_allclose(gradient, [[0.5], [-1.0]])


def test_the_rate_rises_for_a_tenth_of_the_steps_and_falls_to_zero():
    rates = [RELEASED.schedule.rate(step, 200) for step in (0, 10, 20, 110, 199, 200)]
    np.testing.assert_allclose(rates, [0, 5e-4, 1e-3, 5e-4, 1e-3 / 180, 0])
    assert PAPER.schedule == Schedule(5e-4, 0.01, 64, dropout=0.2, warm_up=0.1, num_epochs=20, patience=None)


def test_training_ends_after_patience_and_returns_the_best_epoch():
    given = problem(3, shift=0.0)
    hasty = RELEASED._replace(schedule=replace(RELEASED.schedule, learning_rate=0.3, patience=2))
    trained = train_probe(given, hasty)
    assert len(trained.dev_losses) == trained.epoch + 3 < 20
    dev = given.rows["dev"]
    outputs = trained.outputs(given.vectors_nD.astype(np.float32))[dev]
    again = cross_entropy_of_softmax(outputs, given.values[dev])[0].mean()
    assert again == pytest.approx(min(trained.dev_losses), rel=1e-5)


def targets_of(values, splits):
    if values.dtype.kind == "f":
        return Targets.from_table(targets_table(values=values.tolist(), split=splits))
    return Targets.from_table(targets_table([f"class {value}" for value in values], split=splits))


SPLITS = np.repeat(["train", "dev", "test"], [210, 30, 60])


@pytest.mark.parametrize("recipe", ["released", "paper"])
def test_a_task_by_a_recipe_has_the_figures_of_any_task(recipe):
    given = problem(5, classes=3, count=3000, shift=2.0)
    splits = np.repeat(["train", "dev", "test"], [2100, 300, 600])
    rows = found(targets_of(given.values, splits), given.vectors_nD, PARAMS[recipe])
    values = [macro_f1(given, fit(given._replace(params=PARAMS[recipe], seed=seed)).predicted) for seed in range(5)]
    assert rows["probe.macro_f1"].details["values"] == pytest.approx(values)
    assert rows["probe.macro_f1"].value == pytest.approx(np.mean(values)) and np.mean(values) > 0.8
    assert rows["probe.selectivity"].value > 0.2
    assert all(0 <= fitted["epoch"] < 20 for fitted in rows["probe.macro_f1"].details["fits"])
    number = problem(6, classes=0)
    rows = found(targets_of(number.values, SPLITS), number.vectors_nD, PARAMS[recipe])
    assert rows["probe.pearson"].status == "ok"


def test_control_labels_are_permuted_over_all_splits():
    given = problem(5, classes=3)
    targets = targets_of(given.values, SPLITS)
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(given.vectors_nD), PARAMS["released"])
    control, test = probes.outcomes[0].control_truth, given.rows["test"]
    assert np.bincount(control).tolist() == np.bincount(given.values).tolist()
    assert (control[test] != given.values[test]).any()
    corrected = TaskProbes.of(targets, PooledVectors.from_matrix(given.vectors_nD), TaskParams(compression=False))
    assert (corrected.outcomes[0].control_truth[test] == given.values[test]).all()


def test_what_a_recipe_cannot_train_is_null_with_its_reason():
    given = problem(5)
    no_dev = np.where(SPLITS == "dev", "train", SPLITS)
    rows = found(targets_of(given.values, no_dev), given.vectors_nD, PARAMS["released"])
    assert {measure.status for measure in rows.values()} == {"too_few"}
    assert "no dev instance" in rows["probe.macro_f1"].reason
    one = np.where(SPLITS == "train", 0, given.values)
    rows = found(targets_of(one, SPLITS), given.vectors_nD, PARAMS["released"])
    assert {measure.status for measure in rows.values()} == {"one_class"}
    huge = problem(5, classes=0)
    with pytest.raises(CellError, match="loss on dev is") as error:
        fit(huge._replace(vectors_nD=huge.vectors_nD * 1e38))
    assert error.value.status == "non_finite"
    unseen = given.values.copy()
    unseen[-1] = 7  # a label of test alone
    assert found(targets_of(unseen, SPLITS), given.vectors_nD, PARAMS["released"])["probe.macro_f1"].status == "ok"


def test_the_same_bits_under_any_number_of_threads():
    rng = np.random.default_rng(0)
    rows = dict(zip(("train", "dev", "test"), np.split(np.arange(400), [200, 300]), strict=True))
    wide = Problem(rng.normal(size=(400, 3072)), rng.normal(size=400), rows, 0, TaskParams(protocol="released"), 0)
    assert len(bits_under_threads(lambda: fit(wide).predicted)) == 1
