"""The limits of a model and its engine: requests are checked before, states and log-probabilities after generation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from poolbench.errors import InputError, LayerError
from poolbench_steerer.engine.requests import GenerationRequest
from poolbench_steerer.errors import PromptTooLongError, StateOverflowError
from poolbench_steerer.plugin.receipts import RowCount
from poolbench_steerer.plugin.spec import Steering


@dataclass(frozen=True)
class Limits:
    """The limits of one engine.

    Attributes:
        window: Tokens of a prompt and its text together.
        num_edits: Edits that one request may make at one layer.
    """

    model_id: str
    window: int
    num_layers: int
    num_edits: int

    def check(self, request: GenerationRequest, index: int, *, spare: int = 1) -> None:
        """Raise InputError, PromptTooLongError or LayerError, with its index, for a request that cannot run."""
        if not request.prompt_ids:
            raise InputError(f"prompt {index} has no tokens; give at least one")
        if request.max_tokens < 1:
            raise InputError(f"prompt {index}: max_tokens must be at least 1, got {request.max_tokens}")
        self.check_room(len(request.prompt_ids), request.max_tokens, f"prompt {index}", spare=spare)
        if request.steering is not None:
            self._check_steering(request.steering, len(request.prompt_ids), request.max_tokens, index)

    def check_room(self, num_prompt_tokens: int, num_new_tokens: int, what: str, *, spare: int = 1) -> None:
        """Raise PromptTooLongError when the tokens do not fit. One `spare` token lets the whole text be scored."""
        if num_prompt_tokens + num_new_tokens + spare > self.window:
            kept = ", one kept for scoring" if spare else ""
            raise PromptTooLongError(
                f"{what}: {num_prompt_tokens} prompt tokens and {num_new_tokens} new ones exceed the "
                f"window of {self.model_id} ({self.window} tokens{kept}); shorten the prompt or ask for fewer"
            )

    def check_layer(self, layer: int) -> None:
        """Raise LayerError when the model has no such block."""
        if not 0 <= layer < self.num_layers:
            nearest = min(max(layer, 0), self.num_layers - 1)
            raise LayerError(
                f"layer {layer} is out of range: {self.model_id} has blocks 0..{self.num_layers - 1}; nearest {nearest}"
            )

    def _check_steering(self, steering: Steering, num_prompt: int, max_tokens: int, index: int) -> None:
        for edit in steering.edits:
            self.check_layer(edit.layer)
        if steering.max_edits_per_layer > self.num_edits:
            raise InputError(
                f"prompt {index}: {steering.max_edits_per_layer} edits at one layer, at most {self.num_edits} "
                "are set up; ask for fewer or raise max_edits_per_layer"
            )
        if steering.num_positions(num_prompt, max_tokens) == 0:
            raise InputError(
                f"prompt {index}: steering from position {steering.positions} on would steer nothing; the last "
                f"position of {num_prompt} prompt and {max_tokens} new tokens is {num_prompt + max_tokens - 2}"
            )


def check_counts(count: RowCount, dtype: str) -> None:
    """Raise StateOverflowError, with the layers, when states of a finished request broke."""
    if count.broken:
        places = ", ".join(f"{positions} after layer {layer}" for layer, positions in sorted(count.broken.items()))
        raise StateOverflowError(
            f"states of the model became too large for {dtype} ({places}), so the text is discarded; steer with "
            "less strength, or load the model in a wider type"
        )


def check_logprobs(logprobs: Iterable[float], dtype: str) -> None:
    """Raise StateOverflowError for a log-probability that is not finite."""
    broken = [value for value in logprobs if not math.isfinite(value)]
    if broken:
        raise StateOverflowError(
            f"{len(broken)} log-probabilities of the model are not finite (first: {broken[0]}): its states became too "
            f"large for {dtype}; steer with less strength, or load the model in a wider type"
        )
