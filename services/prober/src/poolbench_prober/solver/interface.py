"""What every solver returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ProbeFit:
    """K probes fitted on one matrix.

    Attributes:
        weights_DK: In the coordinates of the vectors as they were given (standardisation undone).
        intercepts: [K].
        gradient_ratio: Gradient norm at the solution over its norm at zero weights [K].
        converged: Whether the ratio is within the tolerance [K].
        num_iterations: Newton steps of each probe [K].
    """

    weights_DK: np.ndarray
    intercepts: np.ndarray
    gradient_ratio: np.ndarray
    converged: np.ndarray
    num_iterations: np.ndarray

    def scores(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Log-odds of each vector under each probe [n, K]."""
        return vectors_nD @ self.weights_DK + self.intercepts
