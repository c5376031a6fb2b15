"""Losses of the published probes with their gradients, in float32 as PyTorch computes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: Outputs [b, K] and targets [b] to the loss of each row [b] and its gradient by the outputs [b, K].
Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


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
