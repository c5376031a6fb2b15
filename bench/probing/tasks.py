"""Probing sets of several classes and of real values, on vectors with the spectrum of hidden states."""

from typing import NamedTuple

import numpy as np

from poolbench.steps.prober import TaskParams
from poolbench_prober.probing.models import Problem


class Size(NamedTuple):
    """Size of a set: instances, width of the vectors, and classes; 0 classes are real values."""

    rows: int
    width: int
    classes: int


#: Sizes that Holmes has: sentences in two classes, tags of words, pairs of spans (twice the width), lengths.
SIZES = {
    "acceptability": Size(2_000, 768, 2),
    "tags": Size(10_000, 768, 17),
    "span pairs": Size(4_000, 1_536, 5),
    "lengths": Size(4_000, 768, 0),
}


def problem(size: Size, params: TaskParams, seed: int = 0) -> Problem:
    """Draw a set, split 70/10/20: a linear function of the vectors and noise, of which classes are the largest."""
    rng = np.random.default_rng(seed)
    rank = min(size.width, 512)
    factors = rng.standard_normal((size.rows, rank)) * np.arange(1, rank + 1) ** -0.5
    vectors = factors @ rng.standard_normal((rank, size.width)) / np.sqrt(rank)
    vectors += 0.1 * vectors.std() * rng.standard_normal(vectors.shape)
    vectors *= np.exp(0.5 * rng.standard_normal(size.width))
    scores = factors @ rng.standard_normal((rank, max(1, size.classes)))
    scores += 0.5 * scores.std() * rng.standard_normal(scores.shape)
    values = scores.argmax(axis=1) if size.classes else scores[:, 0] / scores.std()
    ends = [int(0.7 * size.rows), int(0.8 * size.rows)]
    rows = dict(zip(("train", "dev", "test"), np.split(rng.permutation(size.rows), ends), strict=True))
    return Problem(vectors, values, rows, size.classes, params, seed)
