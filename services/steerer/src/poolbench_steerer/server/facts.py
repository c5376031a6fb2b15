"""What an answer of vLLM gets beside its texts: receipts, scores, the name of the model, and the seed."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from typing import Any

from poolbench.errors import ReceiptError
from poolbench_steerer.engine import Piece
from poolbench_steerer.engine.requests import PooledVector
from poolbench_steerer.engine.stopping import Scores, Stopped
from poolbench_steerer.http.probes import pooled_score
from poolbench_steerer.http.steering import ReadingBody, receipt_body
from poolbench_steerer.server.fields import READING, Resolved

#: Scale and offset of scores that are not log-odds.
_PLAIN = (1.0, 0.0, None)


@dataclass
class TextFacts:
    """The pieces of one text that no answer has yet, and the scores of the tokens that answers have."""

    pieces: deque[Piece] = field(default_factory=deque)
    scores: list[Scores] = field(default_factory=list)


@dataclass
class Call:
    """One request to the OpenAI API, and its texts by number of the choice.

    Attributes:
        wish: How texts are steered and read along. None leaves them to vLLM.
        echo: Whether the answer has the tokens of the prompt too.
        echo_alone: Whether the answer has no other tokens.
        echoed: Function that returns the text of an echo from the number and the tokens of a prompt. None leaves it to
            vLLM.
        check: Function that raises an error for the tokens of a prompt, and its sampling parameters, that may not run.
        error: What ended a text. vLLM writes its message into the answer.
    """

    wish: Resolved | None = None
    echo: bool = False
    echo_alone: bool = False
    echoed: Callable[[int, Sequence[int]], str] | None = None
    texts: dict[int, TextFacts] = field(default_factory=dict)
    prompts: Iterator[int] = field(default_factory=count)
    check: Callable[[Sequence[int], Any], None] | None = None
    error: Exception | None = None


class Facts:
    """Adds to an answer, or to the chunks of a stream, what belongs to a request."""

    def __init__(self, call: Call, model: str = "", seed: int | None = None) -> None:
        """Take a request. `model` is the name in its answer, unless empty, and `seed` that of its first text."""
        self._call = call
        self._head = ({"model": model} if model else {}) | ({} if seed is None else {"seed": seed})

    def added(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer or a chunk with the facts about its choices.

        Raises:
            ReceiptError: A text that was to be steered has no receipt.
        """
        for choice in answer.get("choices", ()):
            self._add(choice)
        return answer | (self._head if "model" in answer else {})

    def _add(self, choice: dict[str, Any]) -> None:
        wish, text = self._call.wish, self._call.texts.setdefault(choice["index"], TextFacts())
        assert wish is not None
        ended = choice.get("finish_reason") is not None
        pieces = []
        if ended:
            pieces = list(text.pieces)
        elif text.pieces and not choice.get("delta", {}).get("role"):  # vLLM's chunk with the role is without a token
            pieces = [text.pieces.popleft()]
        text.scores += [values for piece in pieces for values in piece.scores]
        if readings := wish.fields.readings:
            numbers = count()
            answers = [
                self._read(wish, next(numbers), pieces, text, ended=ended)
                if isinstance(body, ReadingBody)
                else _pooled(wish, pieces, ended=ended)
                for body in readings
            ]
            choice[READING] = answers if wish.fields.in_list else answers[0]
        if ended:
            receipt = pieces[-1].receipt if pieces else None
            if wish.steering is not None and receipt is None:  # made in a way that the plug-in does not know
                raise ReceiptError(
                    f"choice {choice['index']} has no steering receipt, so its text is discarded; report the request"
                )
            choice["steering_receipt"] = receipt_body(receipt, wish.fields.steering)
            if choice["steering_receipt"] is not None and pieces[-1].stopped is not None:
                choice["steering_receipt"]["stopped"] = _stopped(wish, pieces[-1].stopped)

    def _read(
        self, wish: Resolved, number: int, pieces: list[Piece], text: TextFacts, *, ended: bool
    ) -> dict[str, Any]:
        """Return the scores of new tokens by one of the readings. At the end, say what was read."""
        body = wish.fields.directions[number]
        scale, offset, probe = body.log_odds or _PLAIN

        def score(values: Scores | None) -> float | None:
            return None if values is None else scale * values[number] + offset

        answer: dict[str, Any] = {
            "scores": [score(values) for piece in pieces for values in (*piece.prompt_scores, *piece.scores)]
        }
        if not ended:
            return answer
        answer |= {"layer": wish.readings[number].layer, "direction": body.named and body.named.facts()}
        if probe is not None:
            log_odds = [scale * values[number] + offset for values in text.scores]
            value, reason = pooled_score(probe["strategy"], log_odds, offset)
            answer |= {"probe": probe, "pooled": {"value": value, "reason": reason}}
        if pieces and (stopped := pieces[-1].stopped) is not None and stopped.rule.reading == number:
            answer["stopped"] = _stopped(wish, stopped)
        return answer


def _pooled(wish: Resolved, pieces: list[Piece], *, ended: bool) -> dict[str, Any]:
    """Return the pooled vectors of a choice at its end, by strategy; nothing before."""
    if not ended:
        return {}
    assert wish.pooling is not None
    if not pieces or (pooled := pieces[-1].pooled) is None:  # made in a way that the plug-in does not know
        raise ReceiptError("a choice was not pooled, so its text is discarded; report the request")
    vectors = {
        strategy: {"prompt": _vector(pooled.prompt[strategy]), "answer": _vector(pooled.answer[strategy])}
        for strategy in wish.pooling.strategies
    }
    return {"layer": wish.pooling.layer, "pool": vectors}


def _vector(pooled: PooledVector) -> dict[str, Any]:
    return {"vector": None if pooled.vector is None else pooled.vector.tolist(), "reason": pooled.reason}


def _stopped(wish: Resolved, stopped: Stopped) -> dict[str, Any]:
    """Return which reading ended a text, with the value in the unit of its scores."""
    rule, body = stopped.rule, wish.fields.directions[stopped.rule.reading]
    scale, offset, _ = body.log_odds or _PLAIN
    value = scale * stopped.value + offset
    return {
        "reading": wish.fields.readings.index(body),
        "score": rule.statistic,
        "value": value,
        "for_tokens": rule.num_tokens,
    }


def error_chunk(error: ReceiptError) -> dict[str, Any]:
    """Return an error in the form of vLLM's server."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return {"error": {"message": str(error), "type": status.phrase, "param": None, "code": int(status)}}
