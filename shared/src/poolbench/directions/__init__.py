"""Directions: from the vectors of two classes to one unit vector that can be probed along or steered with.

context = DirectionContext(vectors_nD, labels, pairs_P2, seed=0, probe_weights=weights)
compute_direction("C1", context)                                    -> Direction(id, vector, raw_norm, seed)
null_directions(vectors_nD, labels, pairs_P2, num_nulls=20, seed=0) -> list[Direction]
"""

from poolbench.directions import constructions
from poolbench.directions.registry import (
    CONSTRUCTIONS,
    Direction,
    DirectionContext,
    DirectionSpec,
    available_directions,
    compute_direction,
    null_directions,
    permuted_labels,
)
from poolbench.directions.sae import SparseAutoencoder
