"""The outputs of a text that may end because of what is read along."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poolbench_steerer.engine.requests import Piece
from poolbench_steerer.engine.stopping import Stopped, StopRule, Watch

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

#: What a choice has as the reason of its end beside `finish_reason`, where vLLM has a stop string or token.
STOP_WHEN = "stop_when"


class Assembly:
    """Takes the outputs of one text, and ends the text where a rule says so.

    Rules look at each token. So vLLM gives each token as it comes, and they are joined to one output if the request has
    no stream.

    Attributes:
        token_ids: New tokens so far.
        joins: Whether outputs are joined to one.
    """

    def __init__(self, llm: AsyncLLM, rules: Sequence[StopRule], params: SamplingParams) -> None:
        """Set the kind of output in the sampling parameters."""
        from vllm.sampling_params import RequestOutputKind

        self.token_ids: list[int] = []
        self.joins = bool(rules) and params.output_kind == RequestOutputKind.FINAL_ONLY
        if self.joins:
            params.output_kind = RequestOutputKind.DELTA
        self._llm, self._watch = llm, Watch(rules) if rules else None
        self._text = ""
        self._whole: tuple[RequestOutput, Piece] | None = None

    async def taken(self, output: RequestOutput, piece: Piece) -> tuple[RequestOutput, Piece]:
        """Return the next output with its piece, cut after the token that ends the text.

        If outputs are joined, return all outputs so far as one.
        """
        fired = None if self._watch is None else self._watch.first(piece.scores)
        if fired is not None:
            piece = await self._cut(output, piece, fired[0] + 1, fired[1])
        self.token_ids += piece.token_ids
        if self._watch is not None:
            self._text += output.outputs[0].text
        if not self.joins:
            return output, piece
        if self._whole is not None:
            whole, before = self._whole
            whole.add(output, aggregate=True)
            output, piece = whole, before.joined(piece)
        self._whole = output, piece
        return self._whole

    async def _cut(self, output: RequestOutput, piece: Piece, num_tokens: int, stopped: Stopped) -> Piece:
        """End an output and its piece after some tokens of it. Return the piece."""
        text = output.outputs[0]
        if num_tokens < len(piece.token_ids):
            text.token_ids = list(text.token_ids[:num_tokens])
            if text.logprobs is not None:
                text.logprobs = text.logprobs[:num_tokens]
            if text.text:
                text.text = await self._end_of_text(text.token_ids)
        output.finished, text.finish_reason, text.stop_reason = True, "stop", STOP_WHEN
        return replace(
            piece,
            token_ids=piece.token_ids[:num_tokens],
            logprobs=piece.logprobs and piece.logprobs[:num_tokens],
            scores=piece.scores[:num_tokens],
            finish_reason="stop",
            stopped=stopped,
        )

    async def _end_of_text(self, token_ids: Sequence[int]) -> str:
        """Return what tokens add to the text so far."""
        tokenizer = await tokenizer_of(self._llm)
        text = tokenizer.decode([*self.token_ids, *token_ids], skip_special_tokens=True)
        return str(text.removeprefix(self._text))


async def tokenizer_of(llm: AsyncLLM) -> Any:
    """Return the tokenizer of an engine."""
    tokenizer: Any = llm.get_tokenizer()
    if inspect.isawaitable(tokenizer):  # in some releases of vLLM
        tokenizer = await tokenizer
    return tokenizer
