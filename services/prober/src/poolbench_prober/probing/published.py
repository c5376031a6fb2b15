"""How Holmes trains its probes: the recipe of its released code, and that of its paper."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from poolbench.cancellation import check_cancelled
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.probing.models import Fitted, Problem

#: Outputs [b, K] and targets [b] to the loss of each row [b] and its gradient by the outputs [b, K].
Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
BETAS = 0.9, 0.999
EPSILON = 1e-8


def cross_entropy(outputs_bK: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return -log softmax(z)_y, and softmax(z) minus the one-hot label."""
    shifted = outputs_bK - outputs_bK.max(axis=1, keepdims=True)
    exponents = np.exp(shifted)
    sums = exponents.sum(axis=1, keepdims=True)
    rows = np.arange(len(codes))
    gradient = exponents / sums
    gradient[rows, codes] -= 1
    return np.log(sums[:, 0]) - shifted[rows, codes], gradient


def cross_entropy_of_softmax(outputs_bK: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of softmax(z) in place of z: a second softmax, as in the released code.

    The outputs of the second softmax are within a factor e of one another, so a right answer costs at least
    log(1 + (K - 1) / e).
    """
    exponents = np.exp(outputs_bK - outputs_bK.max(axis=1, keepdims=True))
    p_bK = exponents / exponents.sum(axis=1, keepdims=True)
    losses, gradient = cross_entropy(p_bK, codes)
    return losses, p_bK * (gradient - (p_bK * gradient).sum(axis=1, keepdims=True))


def smooth_l1(outputs_b1: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return d^2 / 2 where |d| < 1, else |d| - 1 / 2, of the difference d, and its gradient.

    Reference: Girshick (2015), Fast R-CNN, eq. 3.
    """
    difference = outputs_b1[:, 0] - values
    size = np.abs(difference)
    losses = np.where(size < 1, 0.5 * size * size, size - 0.5)
    return losses, np.clip(difference, -1, 1)[:, None]


@dataclass(frozen=True)
class Schedule:
    """How a probe is trained."""

    learning_rate: float  # its highest value, reached after the warm-up
    weight_decay: float  # decoupled from the gradient (AdamW); 0 is Adam
    batch: int  # rows of a step
    dropout: float = 0.2  # share of the numbers of a vector that are set to 0 in training; the others are scaled up
    warm_up: float = 0.1  # share of all steps in which the rate rises linearly from 0; it then falls linearly to 0
    num_epochs: int = 20
    patience: int | None = None  # epochs without a lower loss on dev after which training ends; None trains all epochs

    def rate(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        rising = self.warm_up * num_steps
        share = step / max(1.0, rising) if step < rising else (num_steps - step) / max(1.0, num_steps - rising)
        return self.learning_rate * max(0.0, share)


@dataclass(frozen=True)
class Trained:
    """The probe of the epoch with the lowest loss on dev."""

    parameters_DK: np.ndarray  # weights, and in the last row intercepts [D + 1, K], float32
    dev_losses: tuple[float, ...]  # mean loss on dev after each epoch

    @property
    def epoch(self) -> int:
        """Return the number of the chosen epoch, from 0."""
        return int(np.argmin(self.dev_losses))

    def outputs(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return the outputs [n, K]."""
        return _outputs(self.parameters_DK, vectors_nD)


def train(
    train_set: tuple[np.ndarray, np.ndarray],
    dev_set: tuple[np.ndarray, np.ndarray],
    num_outputs: int,
    loss: Loss,
    schedule: Schedule,
    rng: np.random.Generator,
) -> Trained:
    """Train a probe and return it as it was after its best epoch.

    Args:
        train_set: Vectors [n, D] in float32, and class numbers or float32 values [n].
        dev_set: The same of dev.
        rng: Draws, in this order, the first weights and intercepts, and for each epoch the order of the rows and for
            each batch the numbers [b, D] in [0, 1), below `dropout` where a number is dropped.

    Raises:
        CellError: `non_finite` if a loss on dev is not finite.
    """
    width = train_set[0].shape[1]
    # PyTorch's first values of a linear layer: uniform in +- 1 / sqrt(D).
    parameters = ((2 * rng.random((width + 1, num_outputs)) - 1) / np.sqrt(width)).astype(np.float32)
    adam = _Adam(parameters, schedule, schedule.num_epochs * -(-len(train_set[0]) // schedule.batch))
    best, dev_losses = parameters, []
    for epoch in range(schedule.num_epochs):
        check_cancelled()
        _pass(train_set, loss, schedule, adam, rng)
        dev_losses.append(float(loss(_outputs(parameters, dev_set[0]), dev_set[1])[0].mean(dtype=np.float64)))
        if not np.isfinite(dev_losses[-1]):
            raise CellError(Status.NON_FINITE, f"the loss on dev is {dev_losses[-1]} after epoch {epoch}")
        lowest = int(np.argmin(dev_losses))
        if lowest == epoch:
            best = parameters.copy()
        elif schedule.patience is not None and epoch - lowest >= schedule.patience:
            break
    return Trained(best, tuple(dev_losses))


def _pass(
    train_set: tuple[np.ndarray, np.ndarray], loss: Loss, schedule: Schedule, adam: "_Adam", rng: np.random.Generator
) -> None:
    """Take one step for each batch of the rows in a random order."""
    vectors_nD, targets = train_set
    order = rng.permutation(len(vectors_nD))
    for start in range(0, len(order), schedule.batch):
        rows = order[start : start + schedule.batch]
        dropout_mask = rng.random((len(rows), vectors_nD.shape[1]), dtype=np.float32) >= schedule.dropout
        batch_bD = vectors_nD[rows] * dropout_mask * np.float32(1 / (1 - schedule.dropout))
        _, gradient_bK = loss(_outputs(adam.parameters, batch_bD), targets[rows])
        gradient_bK = gradient_bK / np.float32(len(rows))
        adam.step(np.vstack([batch_bD.T @ gradient_bK, gradient_bK.sum(axis=0, keepdims=True)]))


def _outputs(parameters_DK: np.ndarray, vectors_nD: np.ndarray) -> np.ndarray:
    return np.asarray(vectors_nD @ parameters_DK[:-1] + parameters_DK[-1])


class _Adam:
    """Adam or AdamW on one array, changed in place.

    Reference: Kingma & Ba (2015), Adam; Loshchilov & Hutter (2019), Decoupled weight decay regularization.
    """

    def __init__(self, parameters: np.ndarray, schedule: Schedule, num_steps: int) -> None:
        self.parameters = parameters
        self._schedule, self._num_steps, self._taken = schedule, num_steps, 0
        self._mean, self._square = np.zeros_like(parameters), np.zeros_like(parameters)

    def step(self, gradient: np.ndarray) -> None:
        """Take one step at the learning rate of the schedule."""
        rate = self._schedule.rate(self._taken, self._num_steps)
        self._taken += 1
        first, second = BETAS
        if self._schedule.weight_decay:
            self.parameters *= np.float32(1 - rate * self._schedule.weight_decay)
        self._mean += np.float32(1 - first) * (gradient - self._mean)
        self._square *= np.float32(second)
        self._square += np.float32(1 - second) * (gradient * gradient)
        scale = np.sqrt(self._square) / np.float32(np.sqrt(1 - second**self._taken)) + np.float32(EPSILON)
        self.parameters -= np.float32(rate / (1 - first**self._taken)) * self._mean / scale


class Recipe(NamedTuple):
    """A published way to train a probe on vectors that are not standardised."""

    schedule: Schedule
    classes: Loss  # loss of a classification; of real values it is smooth L1


#: The released code: a softmax before a loss that contains one, and an early stop.
RELEASED = Recipe(Schedule(1e-3, weight_decay=0.0, batch=16, patience=5), cross_entropy_of_softmax)
#: The paper: AdamW with PyTorch's usual weight decay, and all epochs.
PAPER = Recipe(Schedule(5e-4, weight_decay=0.01, batch=64), cross_entropy)
RECIPES = {"released": RELEASED, "paper": PAPER}


def fit(problem: Problem) -> Fitted:
    """Return the probe of the recipe that the parameters name; all bits are the same for any number of threads.

    Raises:
        CellError: `too_few` without dev instances, on which the epoch is chosen; `non_finite` as `train`.

    Reference: Waldis et al. (2024), "Holmes", section 4, and the code released with it.
    """
    if not len(problem.rows["dev"]):
        raise CellError(Status.TOO_FEW, "the published protocols choose an epoch on dev, and there is no dev instance")
    recipe = RECIPES[problem.params.protocol]
    # A BLAS adds up in another order on more threads. Overflows end in a loss that is not finite.
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        trained = train_probe(problem, recipe)
        outputs_nK = trained.outputs(problem.vectors_nD.astype(np.float32))
    details = {"epoch": trained.epoch, "num_epochs": len(trained.dev_losses), "dev_loss": min(trained.dev_losses)}
    return Fitted(outputs_nK[:, 0] if problem.is_regression else outputs_nK.argmax(axis=1), details)


def train_probe(problem: Problem, recipe: Recipe) -> Trained:
    """Return the trained probe of a problem."""
    answers = problem.values.astype(np.float32 if problem.is_regression else np.int64)
    parts = [problem.rows[split] for split in ("train", "dev")]
    train_set, dev_set = ((problem.vectors_nD[rows].astype(np.float32), answers[rows]) for rows in parts)
    loss = smooth_l1 if problem.is_regression else recipe.classes
    rng = np.random.default_rng((problem.seed, 2))
    return train(train_set, dev_set, max(1, problem.num_classes), loss, recipe.schedule, rng)
