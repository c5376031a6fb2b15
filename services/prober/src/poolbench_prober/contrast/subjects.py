"""What the rows of a subject say about single features: which are strongest, and whether the choice of one holds."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import numpy as np

from poolbench_prober.contrast.features import Part
from poolbench_prober.contrast.pairs import Pairs

NUM_SHOWN = 5


class Strongest(NamedTuple):
    """A feature, with its means over the stories of both sides."""

    feature: int
    first: float
    second: float
    sign: int


class SubjectFeatures(NamedTuple):
    """What a subject's rows say about single features."""

    held_out: float  # NaN with one row
    strongest: tuple[Strongest, ...]


def subject_features(pairs: Pairs, part: Part, seed: int) -> Iterator[SubjectFeatures]:
    """Yield the features of each subject, in order."""
    for subject, rows in pairs.by_subject():
        stories_r2 = pairs.stories_n2[rows]
        yield SubjectFeatures(held_out_share(stories_r2, part, f"{seed}:{subject}"), _strongest(stories_r2, part))


def held_out_share(stories_r2: np.ndarray, part: Part, key: str) -> float:
    """Return the share of right pairs of rows that did not choose the feature; NaN with one row.

    The rows are halved at random. The feature with the largest mean difference of one half, with its sign, is read on
    the rows of the other half: a row is right if its first story has more of it (less, with a negative sign), and a tie
    counts one half. The share is the mean over the two directions. Chance is .5, whatever the number of features.

    Args:
        stories_r2: The two stories of each row.
        part: Their mean features.
        key: Seed of the halves.
    """
    count = len(stories_r2)
    if count < 2:
        return float("nan")
    order = Random(key).sample(range(count), count)
    halves = stories_r2[order[: count // 2]], stories_r2[order[count // 2 :]]
    return float(np.mean([_right(half, read, part) for half, read in (halves, halves[::-1])]))


def _right(chosen_r2: np.ndarray, read_r2: np.ndarray, part: Part) -> float:
    difference_F = mean_difference(chosen_r2, part)
    feature = int(np.abs(difference_F).argmax())
    first, second = (part.means_PF[read_r2[:, side]][:, [feature]].toarray()[:, 0] for side in (0, 1))
    return float(np.mean((1 + np.sign(difference_F[feature]) * np.sign(first - second)) / 2))


def mean_difference(stories_r2: np.ndarray, part: Part) -> np.ndarray:
    """Return the mean over rows of V1 - V2 [F]."""
    return part.weighted_sum(stories_r2.ravel(), np.tile([1.0, -1.0], len(stories_r2)) / len(stories_r2))


def _strongest(stories_r2: np.ndarray, part: Part) -> tuple[Strongest, ...]:
    weights_r = np.full(len(stories_r2), 1 / len(stories_r2))
    first_F, second_F = (part.weighted_sum(stories_r2[:, side], weights_r) for side in (0, 1))
    difference_F = first_F - second_F
    return tuple(
        Strongest(feature, float(first_F[feature]), float(second_F[feature]), int(np.sign(difference_F[feature])))
        for feature in _largest(np.abs(difference_F), NUM_SHOWN)
    )


def _largest(sizes_F: np.ndarray, count: int) -> list[int]:
    """Return the numbers of the largest values above 0, largest first; the first of equals."""
    left_F, features = sizes_F.copy(), []
    for _ in range(count):
        largest = int(left_F.argmax())
        if not left_F[largest] > 0:
            break
        features.append(largest)
        left_F[largest] = 0
    return features
