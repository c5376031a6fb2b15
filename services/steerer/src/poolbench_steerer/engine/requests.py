"""Requests to an engine and their results: whole texts, or their pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poolbench_steerer.plugin import WIRE_KEY
from poolbench_steerer.plugin.receipts import Receipt
from poolbench_steerer.plugin.spec import Steering

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.logprobs import Logprob
    from vllm.outputs import RequestOutput

Step = dict[int, float]  # at one position, log-probabilities by token


@dataclass(frozen=True)
class GenerationRequest:
    """One text to generate."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    steering: Steering | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None  # of every new token, the log-probabilities of this many best ones
    prompt_logprobs: int | None = None  # the same of every prompt token but the first


@dataclass(frozen=True)
class Generation:
    """A generated text as token ids, with its receipt when it was steered."""

    token_ids: tuple[int, ...]
    finish_reason: str
    receipt: Receipt | None
    first_logprobs: dict[int, float] | None = None


@dataclass(frozen=True)
class Piece:
    """The tokens that were added to a text.

    Attributes:
        logprobs: Of every token, the log-probabilities of the best and of the chosen one; None unless requested.
        finish_reason: `stop` or `length` at the end of the text.
        prompt_logprobs: The same of the prompt's tokens, None of the first one; only in the first piece.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[Step, ...] | None
    finish_reason: str | None
    prompt_logprobs: tuple[Step | None, ...] | None = None

    @classmethod
    def of(cls, output: RequestOutput) -> Piece:
        """Return vLLM's output of one step."""
        completion = output.outputs[0]
        logprobs = None
        if completion.logprobs is not None:
            logprobs = tuple(_values(step) for step in completion.logprobs if step is not None)
        prompt = None
        if output.prompt_logprobs:
            prompt = tuple(None if step is None else _values(step) for step in output.prompt_logprobs)
        return cls(tuple(completion.token_ids), logprobs, completion.finish_reason, prompt)

    def without_tokens(self) -> Piece:
        """Return the piece of a request for no tokens: vLLM generates at least one."""
        return Piece(
            (), () if self.logprobs is not None else None, self.finish_reason and "length", self.prompt_logprobs
        )


def _values(step: dict[int, Logprob]) -> Step:
    return {token: entry.logprob for token, entry in step.items()}


Take = Callable[[Piece], bool]  # called with every piece; True ends the text there


def unsteered_wire(row: int) -> dict[str, Any]:
    """Return the instructions of an unsteered request: a row to count broken states in, and no edits."""
    return {"row": row, "start": None, "stop": None, "edits": []}


def sampling_params(
    request: GenerationRequest, wire: dict[str, Any] | None = None, *, in_steps: bool = False
) -> SamplingParams:
    """Return a request in vLLM's terms; `wire` has its row and edits, `in_steps` requests a piece with each step."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    steers_prompt = request.steering is not None and request.steering.steers_prompt(len(request.prompt_ids))
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if in_steps else RequestOutputKind.FINAL_ONLY,
        extra_args={WIRE_KEY: wire} if wire is not None else None,
        # Cached prompt positions were steered for another request: this one could not count them.
        skip_reading_prefix_cache=True if steers_prompt else None,
        skip_clone=True,  # made for this request alone; a deep copy costs a percent of the throughput
    )
