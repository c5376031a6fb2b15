"""Batches of distinct prompts, their requests steered by settings in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from poolbench_steerer.plugin.spec import Edit, Reading, Steering

ALPHA = 1.0  # small: the texts stay texts, and the work is the same at any strength
#: Token ids that are ordinary words in any vocabulary.
ORDINARY = (300, 1000)


@dataclass(frozen=True)
class Sizes:
    """How much is generated."""

    batch: int = 256  # requests in flight at once
    tokens: int = 64  # new tokens per request
    prompt_tokens: int = 12  # tokens per prompt
    pairs: int = 9  # interleaved pairs behind the median ratio
    settings: tuple[int, ...] = (1, 8, 64, 256)  # numbers of distinct (vector, layer, strength) settings in a batch


def unit_vectors(rng: np.random.Generator, count: int, width: int) -> list[np.ndarray]:
    """Return random unit vectors."""
    matrix = rng.standard_normal((count, width)).astype(np.float32)
    return list(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))


def prompts(sizes: Sizes) -> list[tuple[int, ...]]:
    """Return distinct prompts of ordinary token ids."""
    ids = np.random.default_rng(1).integers(*ORDINARY, size=(sizes.batch, sizes.prompt_tokens))
    return [tuple(row) for row in ids.tolist()]


def requests(engine: SteeringEngine, sizes: Sizes, ids: Sequence[str] | None) -> list[GenerationRequest]:
    """Return a batch whose requests take the settings in turn: vector, layer and strength; unsteered without ids."""
    batch = []
    for index, prompt in enumerate(prompts(sizes)):
        steering = None
        if ids is not None:
            setting = index % len(ids)
            alpha = ALPHA * (1.0 + setting / max(sizes.settings))
            steering = Steering((Edit(ids[setting], setting % engine.num_layers, alpha),))
        batch.append(GenerationRequest(prompt, sizes.tokens, steering, ignore_eos=True))
    return batch


def reading_requests(engine: SteeringEngine, sizes: Sizes, ids: Sequence[str]) -> list[GenerationRequest]:
    """Return the unsteered batch, each text of which reads one direction along: vectors and layers in turn."""
    return [
        replace(request, readings=(Reading(ids[index % len(ids)], index % engine.num_layers),))
        for index, request in enumerate(requests(engine, sizes, None))
    ]
