"""Requests to an engine and their results: whole texts, or their pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from poolbench.errors import InputError, LayerError
from poolbench_steerer.engine.stopping import Scores, Stopped, StopRule
from poolbench_steerer.errors import PromptTooLongError, StateOverflowError
from poolbench_steerer.plugin.receipts import Receipt, RowCount
from poolbench_steerer.plugin.spec import MAX_READINGS, Pooling, Reading, Steering

if TYPE_CHECKING:
    import numpy as np
    from vllm import SamplingParams
    from vllm.logprobs import Logprob
    from vllm.outputs import RequestOutput


Step = dict[int, float]  # at one position, log-probabilities by token
#: Bytes of the states that all texts under way keep in order to be pooled.
MAX_STATE_BYTES = 2**30


@dataclass(frozen=True)
class PooledVector:
    """A pooled vector, float32 [width], or why there is none."""

    vector: np.ndarray | None
    reason: str | None


@dataclass(frozen=True)
class Pooled:
    """The pooled vectors of a text, by strategy."""

    prompt: dict[str, PooledVector]
    answer: dict[str, PooledVector]


@dataclass(frozen=True)
class GenerationRequest:
    """One text to generate.

    Attributes:
        readings: Directions to read during generation. A token is read at the position from which it is sampled.
        read_prompt: Whether prompt tokens except the first are read too.
        stops: Rules that end the text by what is read.
        pooling: How the prompt and the answer are pooled.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    steering: Steering | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None  # of every new token, the log-probabilities of this many best ones
    prompt_logprobs: int | None = None  # the same for every prompt token except the first
    of_task: bool = False  # whether texts that clients wait for go first
    readings: tuple[Reading, ...] = ()
    read_prompt: bool = False
    stops: tuple[StopRule, ...] = ()
    pooling: Pooling | None = None

    @property
    def vector_ids(self) -> list[str]:
        """Return the vectors that must be in the bank."""
        steered = self.steering.vector_ids if self.steering is not None else ()
        return [*steered, *(reading.vector_id for reading in self.readings)]

    @property
    def computes_prompt(self) -> bool:
        """Return whether the whole prompt is computed.

        Positions in the cache were steered for another request, so their edits, scores and states would be missing.
        """
        steers_prompt = self.steering is not None and self.steering.steers_prompt(len(self.prompt_ids))
        return steers_prompt or self.read_prompt or self.pooling is not None

    @property
    def num_kept(self) -> int:
        """Return the number of positions whose states may be kept. The last token is not fed back."""
        return 0 if self.pooling is None else len(self.prompt_ids) + self.max_tokens - 1

    @property
    def first_read(self) -> int:
        """Return the first position that is read."""
        return 0 if self.read_prompt else len(self.prompt_ids) - 1

    def wire(self, row: int, slots: dict[str, int]) -> dict[str, Any]:
        """Return the instructions for the worker in `SamplingParams.extra_args`."""
        wire: dict[str, Any] = {"row": row, "start": None, "stop": None, "edits": []}  # counts broken states
        if self.steering is not None:
            wire = self.steering.wire(row, slots, len(self.prompt_ids))
        if self.readings:
            wire["readings"] = [(reading.layer, slots[reading.vector_id]) for reading in self.readings]
            wire["read_from"] = self.first_read
        if self.pooling is not None:
            wire["pool"] = (self.pooling.layer, self.num_kept)
        return wire


@dataclass(frozen=True)
class Generation:
    """A generated text as token ids, with its receipt when it was steered."""

    token_ids: tuple[int, ...]
    finish_reason: str
    receipt: Receipt | None
    first_logprobs: dict[int, float] | None = None
    scores: tuple[Scores, ...] = ()
    stopped: Stopped | None = None
    pooled: Pooled | None = None


@dataclass(frozen=True)
class Piece:
    """The tokens that were added to a text.

    Attributes:
        logprobs: For each token, log-probabilities of the best tokens and of the chosen token. None unless requested.
        finish_reason: `stop` or `length` at the end of the text.
        prompt_logprobs: As `logprobs` for the prompt tokens, with None for the first token. Only in the first piece.
        scores: For each token, the scores of the readings.
        prompt_scores: As `scores` for the prompt tokens, with None for the first token. Only in the first piece, if
            requested.
        receipt: Only in the last piece of a steered text.
        stopped: Only in the last piece of a text that ended because of what was read.
        pooled: Only in the last piece of a text that is pooled.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[Step, ...] | None
    finish_reason: str | None
    prompt_logprobs: tuple[Step | None, ...] | None = None
    scores: tuple[Scores, ...] = ()
    prompt_scores: tuple[Scores | None, ...] = ()
    receipt: Receipt | None = None
    stopped: Stopped | None = None
    pooled: Pooled | None = None

    def joined(self, later: Piece) -> Piece:
        """Return this piece and the one behind it as one."""
        return replace(
            later,
            token_ids=self.token_ids + later.token_ids,
            logprobs=None if self.logprobs is None else self.logprobs + (later.logprobs or ()),
            prompt_logprobs=self.prompt_logprobs,
            scores=self.scores + later.scores,
            prompt_scores=self.prompt_scores,
        )

    @classmethod
    def of(cls, output: RequestOutput) -> Piece:
        """Convert the output of one vLLM step to a piece."""
        completion = output.outputs[0]
        logprobs = None
        if completion.logprobs is not None:
            logprobs = tuple(_values(step) for step in completion.logprobs if step is not None)
        prompt = None
        if output.prompt_logprobs:
            prompt = tuple(None if step is None else _values(step) for step in output.prompt_logprobs)
        return cls(tuple(completion.token_ids), logprobs, completion.finish_reason, prompt)


def _values(step: dict[int, Logprob]) -> Step:
    return {token: entry.logprob for token, entry in step.items()}


def sampling_params(request: GenerationRequest) -> SamplingParams:
    """Convert a request to vLLM."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # made for this request alone; a deep copy costs a percent of the throughput
    )


@dataclass(frozen=True)
class Limits:
    """The limits of one engine."""

    model_id: str
    window: int  # tokens of a prompt and its text together
    num_layers: int
    num_edits: int  # edits that one request may make at one layer
    state_bytes: int  # size of the state of one position

    def check(self, request: GenerationRequest, index: int, *, spare: int = 1) -> None:
        """Raise InputError, PromptTooLongError or LayerError with `index` if a request cannot run."""
        if not request.prompt_ids:
            raise InputError(f"prompt {index} has no tokens; give at least one")
        if request.max_tokens < 1:
            raise InputError(f"prompt {index}: max_tokens must be at least 1, got {request.max_tokens}")
        self.check_room(len(request.prompt_ids), request.max_tokens, f"prompt {index}", spare=spare)
        if request.steering is not None:
            self._check_steering(request.steering, len(request.prompt_ids), request.max_tokens, index)
        for reading in request.readings:
            self.check_layer(reading.layer)
        num_readings = len(request.readings) + (request.pooling is not None)
        if num_readings > MAX_READINGS:
            raise InputError(f"prompt {index}: {num_readings} readings, at most {MAX_READINGS} are taken")
        if request.pooling is not None:
            self.check_layer(request.pooling.layer)
            self._check_states(request.num_kept, index)

    def check_room(self, num_prompt_tokens: int, num_new_tokens: int, what: str, *, spare: int = 1) -> None:
        """Raise PromptTooLongError if the tokens exceed the window. One `spare` token lets the whole text be scored."""
        if num_prompt_tokens + num_new_tokens + spare > self.window:
            reserve = ", one kept for scoring" if spare else ""
            raise PromptTooLongError(
                f"{what}: {num_prompt_tokens} prompt tokens and {num_new_tokens} new ones exceed the "
                f"window of {self.model_id} ({self.window} tokens{reserve}); shorten the prompt or ask for fewer"
            )

    def check_layer(self, layer: int) -> None:
        """Raise LayerError when the model has no such block."""
        if not 0 <= layer < self.num_layers:
            nearest = min(max(layer, 0), self.num_layers - 1)
            raise LayerError(
                f"layer {layer} is out of range: {self.model_id} has blocks 0..{self.num_layers - 1}; nearest {nearest}"
            )

    def _check_states(self, num_positions: int, index: int) -> None:
        largest = MAX_STATE_BYTES // self.state_bytes
        if num_positions > largest:
            raise InputError(
                f"prompt {index}: {num_positions} positions of prompt and new tokens are too many to pool; the "
                f"states of at most {largest} of {self.model_id} are kept: shorten the prompt or lower max_tokens"
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
