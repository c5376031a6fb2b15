"""Vectors with the statistics of pooled hidden states, and the probes of the D1 protocol on them."""

from dataclasses import dataclass

import numpy as np

from poolbench.statistics.folds import grouped_folds

C_VALUES = (0.01, 0.1, 1.0, 10.0)
NUM_FOLDS = 5


@dataclass(frozen=True)
class Protocol:
    """One matrix and everything fitted on it."""

    vectors_ND: np.ndarray  # float32, as in the tables
    labels_NK: np.ndarray  # one column per probe: 6 labelings x 4 C
    c_K: np.ndarray  # inverse regularisation of each column
    groups: np.ndarray  # matched pairs
    folds: np.ndarray  # grouped, stratified

    @property
    def training(self) -> list[np.ndarray]:
        """Return the row numbers of each training fold."""
        return [np.flatnonzero(self.folds != fold) for fold in range(NUM_FOLDS)]


def states_like(num_rows: int, width: int, seed: int) -> np.ndarray:
    """Draw vectors with a power-law spectrum, pairs that share a document, uneven columns and a few massive ones."""
    rng = np.random.default_rng(seed)
    rank = min(width, 1024)
    spectrum = np.arange(1, rank + 1, dtype=np.float32) ** -0.5
    document = np.repeat(rng.standard_normal((num_rows // 2, rank), dtype=np.float32), 2, axis=0)
    factors = (document + 0.5 * rng.standard_normal((num_rows, rank), dtype=np.float32)) * spectrum
    vectors = factors @ rng.standard_normal((rank, width), dtype=np.float32)
    deviation = float(vectors.std())
    vectors += 0.2 * deviation * rng.standard_normal((num_rows, width), dtype=np.float32)
    towards = rng.standard_normal(width, dtype=np.float32)
    concept = np.tile(np.array([0.5, -0.5], np.float32), num_rows // 2)
    vectors += 2 * deviation * np.outer(concept, towards / np.linalg.norm(towards))
    vectors *= np.exp(0.5 * rng.standard_normal(width, dtype=np.float32))
    vectors[:, rng.choice(width, 4, replace=False)] *= 50
    vectors += 2 * rng.standard_normal(width, dtype=np.float32)
    return np.ascontiguousarray(vectors, dtype=np.float32)


def protocol(num_rows: int, width: int, seed: int = 0) -> Protocol:
    """Draw the concept, two labelings permuted inside pairs and three control ones, each at four C, in five folds."""
    rng = np.random.default_rng((seed, 1))
    concept = np.tile([1.0, 0.0], num_rows // 2)
    flips = [np.repeat(rng.random(num_rows // 2) < 0.5, 2) for _ in range(2)]
    labelings = [concept, *(np.where(flip, 1 - concept, concept) for flip in flips)]
    labelings += [(rng.random(num_rows) < 0.5).astype(float) for _ in range(3)]
    groups = np.repeat(np.arange(num_rows // 2), 2)
    return Protocol(
        vectors_ND=states_like(num_rows, width, seed),
        labels_NK=np.repeat(np.stack(labelings, axis=1), len(C_VALUES), axis=1),
        c_K=np.tile(C_VALUES, len(labelings)),
        groups=groups,
        folds=grouped_folds(groups, concept.astype(int), NUM_FOLDS, seed),
    )
