"""Erase directions from vectors, and the concept of a labelling from them as far as a linear probe can read it."""

from dataclasses import dataclass
from typing import Self

import numpy as np

#: Eigenvalue of the covariance, or singular value, over the largest one below which it is rounding.
_ROUNDING = 1e-10


def orthonormal(directions_kD: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis [r, D] of the span of directions [k, D], in float64."""
    _, sizes, basis_kD = np.linalg.svd(np.atleast_2d(directions_kD).astype(np.float64), full_matrices=False)
    return np.asarray(basis_kD[sizes > sizes[0] * 1e-5])


def without_directions(vectors_nD: np.ndarray, directions_kD: np.ndarray) -> np.ndarray:
    """Return vectors [n, D] without their projection on the span of directions [k, D]."""
    basis_rD = orthonormal(directions_kD)
    return np.asarray(vectors_nD - (vectors_nD @ basis_rD.T) @ basis_rD)


@dataclass(frozen=True)
class Leace:
    """The smallest change of vectors after which no linear probe does better than a constant (LEACE).

    The changed vector is x - W^+ P W (x - mean). W is the inverse root of the covariance of x, P projects on W c, and c
    is the covariance of x and the label. On the fitted vectors, no other erasure leaves less for a linear probe. Other
    vectors may keep more of the concept, above all if fewer than D vectors were fitted.

    Reference: Belrose et al. (2023), LEACE: Perfect linear concept erasure in closed form, theorem 4.3.
    """

    mean_D: np.ndarray
    removed_D: np.ndarray  # W^+ u, what is subtracted
    read_D: np.ndarray  # W u, what it is read with

    @classmethod
    def fit(cls, vectors_nD: np.ndarray, labels: np.ndarray) -> Self:
        """Return the change for vectors [n, D] and labels 0 and 1 [n].

        If the class means are equal, vectors stay unchanged.
        """
        vectors = vectors_nD.astype(np.float64)
        mean_D = vectors.mean(axis=0)
        centred_nD = vectors - mean_D
        covariance_D = centred_nD.T @ (labels - labels.mean()) / len(vectors)
        # The covariance is V S^2 V' / n. Its inverse root is the pseudo-inverse where vectors are fewer than D.
        _, sizes, basis_rD = np.linalg.svd(centred_nD, full_matrices=False)
        is_used = sizes**2 > sizes[:1] ** 2 * _ROUNDING
        deviations, basis_rD = sizes[is_used] / np.sqrt(len(vectors)), basis_rD[is_used]
        whitened_r = (basis_rD @ covariance_D) / deviations
        norm = np.linalg.norm(whitened_r)
        unit_r = whitened_r / norm if norm > 0 else whitened_r
        return cls(mean_D, (unit_r * deviations) @ basis_rD, (unit_r / deviations) @ basis_rD)

    def apply(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return vectors [n, D] after the change."""
        read_n = (vectors_nD - self.mean_D) @ self.read_D
        return np.asarray(vectors_nD - np.outer(read_n, self.removed_D))
