"""Null directions: C1 of labels that mean nothing, at the same norm as the real ones."""

import numpy as np

from poolbench.directions.registry import Direction, unit_direction


def permuted_labels(labels: np.ndarray, pairs_P2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Labels permuted so that the design stays: flipped inside matched pairs, shuffled among unpaired rows.

    Args:
        labels: 1 positive, 0 negative [n].
        pairs_P2: Row numbers (positive, negative) of the matched pairs [P, 2].
        rng: Source of randomness.
    """
    permuted = np.array(labels, copy=True)
    swap = pairs_P2[rng.random(len(pairs_P2)) < 0.5]
    permuted[swap[:, 0]], permuted[swap[:, 1]] = labels[swap[:, 1]], labels[swap[:, 0]]
    unpaired = np.setdiff1d(np.arange(len(labels)), pairs_P2.ravel())
    permuted[unpaired] = rng.permutation(labels[unpaired])
    return permuted


def null_directions(
    vectors_nD: np.ndarray, labels: np.ndarray, pairs_P2: np.ndarray, *, num_nulls: int = 20, seed: int = 0
) -> list[Direction]:
    """Unit C1 directions of permuted labels, ids ``null_000`` ...; one generator each, so a prefix is stable.

    Raises:
        CellError: ``collapsed`` where a direction is zero.
    """
    directions = []
    for number in range(num_nulls):
        permuted = permuted_labels(labels, pairs_P2, np.random.default_rng((seed, number)))
        raw = vectors_nD[permuted == 1].mean(axis=0) - vectors_nD[permuted == 0].mean(axis=0)
        directions.append(unit_direction(f"null_{number:03d}", raw, seed))
    return directions
