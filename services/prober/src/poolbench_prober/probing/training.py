"""Train a probe of linear layers with ReLU between them, by minibatches and Adam."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from poolbench.cancellation import check_cancelled
from poolbench.errors import CellError
from poolbench.statuses import Status

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
    """Return the cross-entropy with logits softmax(z), that is, with a second softmax, as in the released code.

    Outputs of the second softmax differ by at most a factor of e, so a right answer costs at least
    log(1 + (K - 1) / e).
    """
    exponents = np.exp(outputs_bK - outputs_bK.max(axis=1, keepdims=True))
    p_bK = exponents / exponents.sum(axis=1, keepdims=True)
    losses, gradient = cross_entropy(p_bK, codes)
    return losses, p_bK * (gradient - (p_bK * gradient).sum(axis=1, keepdims=True))


def smooth_l1(outputs_b1: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss and gradient for the difference d: d^2 / 2 where |d| < 1, else |d| - 1 / 2.

    Reference: Girshick (2015), Fast R-CNN, eq. 3.
    """
    difference = outputs_b1[:, 0] - values
    size = np.abs(difference)
    losses = np.where(size < 1, 0.5 * size * size, size - 0.5)
    return losses, np.clip(difference, -1, 1)[:, None]


def squared(outputs_b1: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss d^2 / 2 for the difference d, and its gradient."""
    difference = outputs_b1[:, 0] - values
    return 0.5 * difference * difference, difference[:, None]


@dataclass(frozen=True)
class Schedule:
    """The schedule of a probe's training."""

    learning_rate: float  # its highest value, reached after the warm-up
    weight_decay: float  # decoupled from the gradient (AdamW); 0 is Adam
    batch: int  # rows of a step
    dropout: float = 0.2  # share of the numbers of a vector that are set to 0 in training; the others are scaled up
    warm_up: float = 0.1  # share of all steps in which the rate rises linearly from 0
    decays: bool = True  # whether the rate then falls linearly to 0
    num_epochs: int = 20
    patience: int | None = None  # epochs without a lower loss on dev after which training ends; None trains all epochs

    def rate(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        rising = self.warm_up * num_steps
        share = (num_steps - step) / max(1.0, num_steps - rising) if self.decays else 1.0
        share = step / max(1.0, rising) if step < rising else share
        return self.learning_rate * max(0.0, share)


@dataclass(frozen=True)
class Trained:
    """The probe of the epoch with the lowest loss on dev."""

    layers: tuple[
        np.ndarray, ...
    ]  # of each layer weights, and in the last row intercepts [inputs + 1, outputs], float32
    dev_losses: tuple[float, ...]  # mean loss on dev after each epoch

    @property
    def epoch(self) -> int:
        """Return the number of the chosen epoch, from 0."""
        return int(np.argmin(self.dev_losses))

    def outputs(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return the outputs [n, K]."""
        return _activations(self.layers, vectors_nD)[-1]


def train(
    train_set: tuple[np.ndarray, np.ndarray],
    dev_set: tuple[np.ndarray, np.ndarray],
    widths: Sequence[int],
    loss: Loss,
    schedule: Schedule,
    rng: np.random.Generator,
) -> Trained:
    """Train a probe and return its state after the epoch with the lowest loss on dev.

    Args:
        train_set: Vectors [n, D] in float32, and class numbers or float32 values [n].
        dev_set: Vectors and class numbers or values of dev, as in `train_set`.
        widths: Number of outputs of each layer. The last layer has the outputs of the probe. ReLU lies between layers.
        rng: Draws, in this order, the first weights and intercepts of each layer, and for each epoch the order of the
            rows and, with dropout, for each batch the numbers [b, D] in [0, 1), below `dropout` where one is dropped.

    Raises:
        CellError: `non_finite` if a loss on dev is not finite.
    """
    inputs = [train_set[0].shape[1], *widths[:-1]]
    layers = [_first_weights(*shape, rng) for shape in zip(inputs, widths, strict=True)]
    num_steps = schedule.num_epochs * -(-len(train_set[0]) // schedule.batch)
    optimizers = [_Adam(layer, schedule, num_steps) for layer in layers]
    best, dev_losses = tuple(layers), list[float]()
    for epoch in range(schedule.num_epochs):
        check_cancelled()
        _pass(train_set, loss, schedule, optimizers, rng)
        dev_losses.append(float(loss(_activations(layers, dev_set[0])[-1], dev_set[1])[0].mean(dtype=np.float64)))
        if not np.isfinite(dev_losses[-1]):
            raise CellError(Status.NON_FINITE, f"the loss on dev is {dev_losses[-1]} after epoch {epoch}")
        lowest = int(np.argmin(dev_losses))
        if lowest == epoch:
            best = tuple(layer.copy() for layer in layers)
        elif schedule.patience is not None and epoch - lowest >= schedule.patience:
            break
    return Trained(best, tuple(dev_losses))


def _first_weights(num_inputs: int, num_outputs: int, rng: np.random.Generator) -> np.ndarray:
    """Return PyTorch's first values of a linear layer: uniform in +- 1 / sqrt(inputs)."""
    return ((2 * rng.random((num_inputs + 1, num_outputs)) - 1) / np.sqrt(num_inputs)).astype(np.float32)


def _pass(
    train_set: tuple[np.ndarray, np.ndarray],
    loss: Loss,
    schedule: Schedule,
    optimizers: Sequence["_Adam"],
    rng: np.random.Generator,
) -> None:
    """Take one step for each batch of the rows in a random order."""
    vectors_nD, targets = train_set
    layers = [optimizer.parameters for optimizer in optimizers]
    order = rng.permutation(len(vectors_nD))
    for start in range(0, len(order), schedule.batch):
        rows = order[start : start + schedule.batch]
        batch_bD = vectors_nD[rows]
        if schedule.dropout:
            dropout_mask = rng.random(batch_bD.shape, dtype=np.float32) >= schedule.dropout
            batch_bD = batch_bD * dropout_mask * np.float32(1 / (1 - schedule.dropout))
        activations = _activations(layers, batch_bD)
        _, gradient_bK = loss(activations[-1], targets[rows])
        gradients = _gradients(layers, activations, gradient_bK / np.float32(len(rows)))
        for optimizer, gradient in zip(optimizers, gradients, strict=True):
            optimizer.step(gradient)


def _activations(layers: Sequence[np.ndarray], vectors_nD: np.ndarray) -> list[np.ndarray]:
    """Return the inputs of each layer, and the outputs of the last one."""
    activations = [vectors_nD]
    for number, layer in enumerate(layers):
        inputs = activations[-1] if number == 0 else np.maximum(activations[-1], 0)
        activations[-1:] = [inputs, inputs @ layer[:-1] + layer[-1]]
    return activations


def _gradients(
    layers: Sequence[np.ndarray], activations: Sequence[np.ndarray], gradient_bK: np.ndarray
) -> list[np.ndarray]:
    """Return the gradient by each layer from that by the outputs of the last one."""
    gradients = list[np.ndarray]()
    for layer, inputs in zip(reversed(layers), reversed(activations[:-1]), strict=True):
        gradients.insert(0, np.vstack([inputs.T @ gradient_bK, gradient_bK.sum(axis=0, keepdims=True)]))
        if len(gradients) < len(layers):
            gradient_bK = gradient_bK @ layer[:-1].T * (inputs > 0)
    return gradients


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
