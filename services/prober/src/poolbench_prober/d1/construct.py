"""The directions of one cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbench.directions import Direction, DirectionContext, SparseAutoencoder, available_directions, compute_direction
from poolbench.errors import CellError
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.solver import ProbeFit


class Directions:
    """Fit directions on some rows of a cell.

    Args:
        num_features: Number of its features that C5 uses.
    """

    def __init__(self, seed: int, sae: SparseAutoencoder | None = None, num_features: int = 10) -> None:
        self.seed, self.sae, self.num_features = seed, sae, num_features
        self.ids = available_directions(() if sae is None else ("sae",))
        self._encoded: tuple[np.ndarray, np.ndarray | None] | None = None

    def context(self, vectors_nD: np.ndarray, passages: Passages, rows: np.ndarray, fit: ProbeFit) -> DirectionContext:
        """Return the context of the directions fitted on `rows`; probe 0 gives C3."""
        subset = passages.take(rows)
        weights = fit.weights_DK[:, 0] if fit.converged[0] else None
        features_nF = self._features(vectors_nD)
        return DirectionContext(
            vectors_nD[rows],
            subset.labels,
            subset.pairs_P2,
            self.seed,
            weights,
            sae=self.sae,
            features_nF=None if features_nF is None else features_nF[rows],
            num_features=self.num_features,
        )

    def params(self, direction_id: str) -> dict[str, Any]:
        """Return the settings that distinguish the rows of a direction."""
        if direction_id != "C5" or self.sae is None:
            return {}
        return {"sae": self.sae.id, "num_features": self.num_features}

    def _features(self, vectors_nD: np.ndarray) -> np.ndarray | None:
        """Return the features of all rows; the last result is cached because every fold needs it."""
        if self.sae is None:
            return None
        if self._encoded is None or self._encoded[0] is not vectors_nD:
            fits = vectors_nD.shape[1] == self.sae.width  # if not, C5 says so
            self._encoded = (vectors_nD, self.sae.encode(vectors_nD) if fits else None)
        return self._encoded[1]


def direction_or_error(name: str, context: DirectionContext) -> Direction | CellError:
    """Return a direction, or the error that prevents it."""
    try:
        return compute_direction(name, context)
    except CellError as error:
        return error
