"""Registry of direction constructions, and null directions: C1 of permuted labels."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from poolbench.directions.sae import SparseAutoencoder
from poolbench.errors import CellError
from poolbench.registry import Registry
from poolbench.statuses import Status

#: Largest number whose fourth power, summed, float64 can hold; far above what float32 states can.
LARGEST = 1e70


@dataclass(frozen=True)
class DirectionContext:
    """The inputs from which a construction makes a direction."""

    vectors_nD: np.ndarray  # pooled vectors, float64 [n, D], finite
    labels: np.ndarray  # 1 positive, 0 negative [n]
    pairs_P2: np.ndarray  # row numbers (positive, negative) of matched pairs [P, 2]; empty if there are none
    seed: int = 0  # seed of constructions that draw
    probe_weights: np.ndarray | None = None  # weights [D] of the converged L2-logistic probe, for `vectors_nD`
    sae: SparseAutoencoder | None = None  # sparse autoencoder of the layer, for C5
    features_nF: np.ndarray | None = None  # features of `vectors_nD` by this autoencoder, if computed before
    num_features: int = 10  # number of features that C5 is made of

    @property
    def positives(self) -> np.ndarray:
        """Return the vectors of the positive class."""
        return self.vectors_nD[self.labels == 1]

    @property
    def negatives(self) -> np.ndarray:
        """Return the vectors of the negative class."""
        return self.vectors_nD[self.labels == 0]


Construction = Callable[[DirectionContext], np.ndarray]


@dataclass(frozen=True)
class DirectionSpec:
    """A registered construction of directions, such as C1."""

    id: str  # `C1` ...; value of `direction_id` and of the column `direction`
    version: int  # raised when its meaning changes
    summary: str
    reference: str
    construct: Construction  # returns the unnormalised direction [D]
    draws: bool = False  # whether it uses the seed
    needs: tuple[str, ...] = ()  # what the context must hold beyond vectors and labels


@dataclass(frozen=True)
class Direction:
    """A direction [D] of unit norm, together with the norm before scaling."""

    id: str
    vector: np.ndarray
    raw_norm: float
    seed: int | None = None


CONSTRUCTIONS = Registry(
    "direction",
    DirectionSpec,
    group="poolbench.directions",
    built_in=("poolbench.directions.constructions",),
    make=lambda direction_id, construct, **metadata: DirectionSpec(direction_id, construct=construct, **metadata),
)


def available_directions(provided: Collection[str] = ()) -> tuple[str, ...]:
    """Return the ids of the constructions that can be computed. `provided` may contain `sae`."""
    at_hand = {"probe_weights", *provided}
    return tuple(s.id for s in CONSTRUCTIONS.all() if at_hand.issuperset(s.needs))


def compute_direction(direction_id: str, context: DirectionContext) -> Direction:
    """Return the unit direction of a construction.

    Raises:
        UnknownNameError: The id is not registered.
        CellError: `one_class` if a class is missing, `collapsed` if the direction is zero, or `non_finite` if the
            direction is not finite or the vectors are so large that their products overflow.
    """
    spec = CONSTRUCTIONS.get(direction_id)
    if len(np.unique(context.labels)) < 2:
        raise CellError(Status.ONE_CLASS, f"direction {direction_id} needs passages of both classes")
    largest = max(float(context.vectors_nD.max()), -float(context.vectors_nD.min()))
    if not largest < LARGEST:
        raise CellError(Status.NON_FINITE, f"vectors hold {largest:.1e}; above {LARGEST:.0e} their products overflow")
    raw = spec.construct(context)
    return unit_direction(direction_id, raw, context.seed if spec.draws else None)


def unit_direction(direction_id: str, raw: np.ndarray, seed: int | None = None) -> Direction:
    """Normalise `raw` [D]. Raise CellError `collapsed` if `raw` is zero, or `non_finite` if `raw` is not finite."""
    norm = float(np.linalg.norm(raw))
    if not np.isfinite(norm):
        raise CellError(Status.NON_FINITE, f"direction {direction_id} has components that are not finite")
    if norm == 0:
        raise CellError(Status.COLLAPSED, f"direction {direction_id} is zero: the classes do not differ")
    return Direction(direction_id, raw / norm, norm, seed)


def permuted_labels(labels: np.ndarray, pairs_P2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Permute labels [n] and keep the design: flip inside matched pairs [P, 2], shuffle among unpaired rows."""
    permuted = np.array(labels, copy=True)
    swap = pairs_P2[rng.random(len(pairs_P2)) < 0.5]
    permuted[swap[:, 0]], permuted[swap[:, 1]] = labels[swap[:, 1]], labels[swap[:, 0]]
    unpaired = np.setdiff1d(np.arange(len(labels)), pairs_P2.ravel())
    permuted[unpaired] = rng.permutation(labels[unpaired])
    return permuted


def null_directions(
    vectors_nD: np.ndarray, labels: np.ndarray, pairs_P2: np.ndarray, *, num_nulls: int = 20, seed: int = 0
) -> list[Direction]:
    """Return `num_nulls` unit C1 directions from permuted labels, named `null_000` and so on.

    Raise CellError `collapsed` if a direction is zero.
    """
    directions = []
    for number in range(num_nulls):
        permuted = permuted_labels(labels, pairs_P2, np.random.default_rng((seed, number)))
        raw = vectors_nD[permuted == 1].mean(axis=0) - vectors_nD[permuted == 0].mean(axis=0)
        directions.append(unit_direction(f"null_{number:03d}", raw, seed))
    return directions
