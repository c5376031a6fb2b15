"""States with known features, and pairs of stories that differ in one of them.

A state is a sum of few of F random unit directions, each times a magnitude, and noise. There are more directions than
dimensions, as in a language model. Rates of activity fall with the rank of a feature. Some features have a child: a
feature that is active only where its parent is.

Reference: Chanin and Garriga-Alonso (2026), SynthSAEBench: superposition, falling rates, and parents. We leave out its
correlations between features that are not parent and child.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import STORIES, table_from_rows

WIDTH, NUM_FEATURES = 256, 512
#: Subjects, each with a feature of its own; the first half of these features have a child.
NUM_SUBJECTS, NUM_ROWS, NUM_TOKENS = 30, 4, 20
#: How often the feature of a subject is active in its first stories, and in all others.
HIGH, LOW = 0.3, 0.05
#: How often a child is active where its parent is.
CHILD = 0.5
#: Mean number of other features per token, and the exponent with which their rates fall.
_OTHERS, _FALL, _MOST = 6.0, 0.7, 0.3
_NOISE = 0.02


@dataclass(frozen=True)
class World:
    """One draw of the model, and its stories."""

    directions_FD: np.ndarray  # unit directions of the true features
    parents: np.ndarray  # numbers of the features with a child [C]
    children: np.ndarray  # numbers of their children [C]
    states_PTD: np.ndarray  # states of each story, float32; the two stories of row r are 2 r and 2 r + 1
    stories: pa.Table  # STORIES; the ids of stories are their numbers

    @classmethod
    def draw(cls, seed: int) -> Self:
        """Return a model and stories."""
        rng = np.random.default_rng(seed)
        drawn_FD = rng.normal(size=(NUM_FEATURES, WIDTH))
        directions_FD = drawn_FD / np.linalg.norm(drawn_FD, axis=1, keepdims=True)
        parents = np.arange(NUM_SUBJECTS // 2)
        children = NUM_SUBJECTS + parents
        rates_PF = _rates(rng)
        active_PTF = rng.random((len(rates_PF), NUM_TOKENS, NUM_FEATURES)) < rates_PF[:, None]
        active_PTF[..., children] = active_PTF[..., parents] & (rng.random(active_PTF[..., parents].shape) < CHILD)
        values_PTF = active_PTF * (1 + 0.3 * np.abs(rng.normal(size=active_PTF.shape)))
        states_PTD = values_PTF @ directions_FD
        states_PTD += _NOISE * rng.normal(size=states_PTD.shape)
        return cls(directions_FD.astype(np.float32), parents, children, states_PTD.astype(np.float32), _stories())


def _rates(rng: np.random.Generator) -> np.ndarray:
    """Return how often each feature is active in each story [P, F]; those of children are not read."""
    rates_F = np.full(NUM_FEATURES, LOW)
    others = np.arange(NUM_SUBJECTS + NUM_SUBJECTS // 2, NUM_FEATURES)
    falling = (1 + rng.permutation(len(others))) ** -_FALL
    rates_F[others] = np.minimum(_MOST, _OTHERS * falling / falling.sum())
    rates_PF = np.tile(rates_F, (NUM_SUBJECTS * NUM_ROWS * 2, 1))
    first = np.arange(0, len(rates_PF), 2)
    rates_PF[first, first // (2 * NUM_ROWS)] = HIGH
    return rates_PF


def _stories() -> pa.Table:
    rows = [
        {"row_id": f"{row:04}", "subject": f"{row // NUM_ROWS:02}", "first": f"{2 * row}", "second": f"{2 * row + 1}"}
        for row in range(NUM_SUBJECTS * NUM_ROWS)
    ]
    return table_from_rows(rows, STORIES)
