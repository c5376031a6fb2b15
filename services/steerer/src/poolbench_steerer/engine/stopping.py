"""Texts that end because of what is read along."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from poolbench.errors import InputError

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    from poolbench_steerer.engine.requests import Piece, Scores

#: What a choice has as the reason of its end beside `finish_reason`, where vLLM has a stop string or token.
STOP_WHEN = "stop_when"
Statistic = Literal["token", "mean", "max"]


@dataclass(frozen=True)
class StopRule:
    """End a text once a statistic of a reading is beyond a threshold for some new tokens in a row.

    Attributes:
        reading: Number of the reading in its request.
        statistic: `token`: the score of the token. `mean`, `max`: mean and highest score of the new tokens so far.
    """

    reading: int
    threshold: float
    above: bool = True
    num_tokens: int = 1
    statistic: Statistic = "token"

    def __post_init__(self) -> None:
        if not abs(self.threshold) < float("inf"):
            raise InputError(f"the threshold of stop_when must be finite, got {self.threshold}")


@dataclass(frozen=True)
class Stopped:
    """The rule that ended a text, and the value of its statistic at the last token."""

    rule: StopRule
    value: float


class Watch:
    """Apply the rules of a request to its scores as they come."""

    def __init__(self, rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self._num_scores = 0
        self._sums = [0.0] * len(rules)
        self._highest = [float("-inf")] * len(rules)
        self._in_a_row = [0] * len(rules)

    def first(self, scores: Sequence[Scores]) -> tuple[int, Stopped] | None:
        """Take the scores of the next tokens. Return the first token at which a rule ends the text, and that rule."""
        for number, values in enumerate(scores):
            self._num_scores += 1
            fired = [stopped for index in range(len(self._rules)) if (stopped := self._next(index, values)) is not None]
            if fired:
                return number, fired[0]
        return None

    def _next(self, index: int, values: Scores) -> Stopped | None:
        rule, score = self._rules[index], values[self._rules[index].reading]
        self._sums[index] += score
        self._highest[index] = max(self._highest[index], score)
        mean = self._sums[index] / self._num_scores
        value = {"token": score, "mean": mean, "max": self._highest[index]}[rule.statistic]
        is_beyond = value > rule.threshold if rule.above else value < rule.threshold
        self._in_a_row[index] = self._in_a_row[index] + 1 if is_beyond else 0
        return Stopped(rule, value) if self._in_a_row[index] >= rule.num_tokens else None


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
