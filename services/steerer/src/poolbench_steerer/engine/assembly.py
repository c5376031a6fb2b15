"""The outputs of a text that may end because of what is read along."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poolbench_steerer.engine.requests import Piece
from poolbench_steerer.engine.stopping import Stopped

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

#: What a choice has as the reason of its end beside `finish_reason`, where vLLM has a stop string or token.
STOP_WHEN = "stop_when"


class Assembly:
    """The outputs of a text that may be cut. Without a stream they are joined to one."""

    def __init__(self, llm: AsyncLLM, *, joins: bool) -> None:
        self._llm, self._joins = llm, joins
        self._token_ids: list[int] = []
        self._text = ""
        self._whole: tuple[RequestOutput, Piece] | None = None

    async def cut(self, output: RequestOutput, piece: Piece, num_tokens: int, stopped: Stopped) -> Piece:
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

    def taken(self, output: RequestOutput, piece: Piece) -> tuple[RequestOutput, Piece]:
        """Return an output with its piece, or, if outputs are joined, all outputs so far as one."""
        self._token_ids += piece.token_ids
        self._text += output.outputs[0].text
        if self._whole is not None:
            whole, before = self._whole
            whole.add(output, aggregate=True)
            output, piece = whole, before.joined(piece)
        if self._joins:
            self._whole = output, piece
        return output, piece

    async def _end_of_text(self, token_ids: Sequence[int]) -> str:
        """Return what tokens add to the text so far."""
        tokenizer: Any = self._llm.get_tokenizer()
        if inspect.isawaitable(tokenizer):  # before vLLM 0.30
            tokenizer = await tokenizer
        text = tokenizer.decode([*self._token_ids, *token_ids], skip_special_tokens=True)
        return str(text.removeprefix(self._text))
