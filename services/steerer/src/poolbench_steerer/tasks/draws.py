"""Sampled texts: which seed each one has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolbench.contracts.keys import digest
from poolbench.errors import InputError


@dataclass(frozen=True)
class Draw:
    """How one text is sampled.

    Attributes:
        sample: Number among the samples of its prompt.
        seed: Its own seed. Directions and strengths share those of a prompt's samples, so that comparing them
            is paired; and no text depends on what else is in the batch.
        temperature: Of the softmax, above 0.
    """

    sample: int
    seed: int
    temperature: float

    def columns(self) -> dict[str, Any]:
        """The columns of SAMPLES."""
        return {"sample": self.sample, "sample_seed": self.seed, "temperature": self.temperature}


#: The draws of each prompt's samples, by prompt id.
Draws = Mapping[str, Sequence[Draw]]


def plan_draws(prompt_ids: Iterable[str], *, temperature: float, num_samples: int, seed: int) -> Draws | None:
    """The draws of each prompt; None where decoding is greedy.

    A draw's seed is a hash of the task's seed, the prompt's id and the sample's number, and of nothing else.

    Raises:
        InputError: For several samples without a temperature: they would be the same text.
    """
    if temperature == 0:
        if num_samples > 1:
            raise InputError(f"num_samples is {num_samples} at temperature 0: greedy texts do not differ; use 1")
        return None
    return {
        name: [Draw(n, int(digest([seed, name, n], 8), 16), temperature) for n in range(num_samples)]
        for name in prompt_ids
    }


def draws_of(prompt_id: str, draws: Draws | None) -> Sequence[Draw | None]:
    """The draws of one prompt; a single greedy one where there are none."""
    return [None] if draws is None else draws[prompt_id]
