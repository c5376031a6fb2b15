"""Adam on a linear probe, step by step as PyTorch does it, in NumPy: the image of the prober has no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poolbench.cancellation import check_cancelled
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.probing.published.losses import Loss

BETAS = 0.9, 0.999
EPSILON = 1e-8


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
    train_set: tuple[np.ndarray, np.ndarray], loss: Loss, schedule: Schedule, adam: _Adam, rng: np.random.Generator
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
