"""Vectors with cards, for tests that write, read or show them."""

from typing import Any

import numpy as np

from poolbench_driver.vectors.card import Source, Strength, Vector, VectorCard, sha256_of_vectors


def vector_of(*layers: int, seed: int = 5, **fields: Any) -> Vector:
    """Return a vector of unit norm at each layer, the same for each seed, whose card has these fields."""
    facts = {"name": "demo+contrast", "concept": "contrast", "model": "demo", "width": 256, "num_blocks": 6, **fields}
    random = np.random.default_rng(seed)
    numbers = {layer: random.normal(size=facts["width"]) for layer in layers}
    vectors = {layer: (each / np.linalg.norm(each)).astype(np.float32) for layer, each in numbers.items()}
    known = {"strength": Strength(), "source": Source(tool="a test"), "vectors_sha256": sha256_of_vectors(vectors)}
    return Vector(VectorCard(**known | facts, layers=layers), vectors)
