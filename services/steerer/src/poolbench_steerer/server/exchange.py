"""One HTTP request and its response: fields about steering are taken from the body, receipts and scores added."""

import json
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Send

from poolbench.errors import InputError, PoolbenchError
from poolbench_steerer.engine.requests import Scores
from poolbench_steerer.http.steering import ReadingBody, receipt_body
from poolbench_steerer.server.fields import READING, STEERING, Fields, steering_of
from poolbench_steerer.server.texts import Call, ServedEngine, TextFacts
from poolbench_steerer.steered_names import SteeredName

#: Where a body has the fields, and a response has receipts.
ROUTES = ("/v1/completions", "/v1/chat/completions")
_MARKS = (STEERING.encode(), READING.encode(), b"\\u", b"\\/")  # keys and names may be escaped


class Exchange:
    """A request on its way to vLLM's routes, and the response on its way back."""

    def __init__(self, engine: ServedEngine, path: str, call: Call) -> None:
        self._engine, self._path, self._call = engine, path, call
        self._received = False
        self._start: Message | None = None
        self._streams = self._unchanged = False
        self._held = b""
        self._steered = ""  # the name of the model, where it says how to steer

    async def receive(self, receive: Receive) -> Message:
        """Return the whole body without our fields. vLLM reads the body after it has checked the client's key.

        Raises:
            HTTPException: The fields cannot be parsed, or request something that is not possible.
        """
        if self._received:
            return await receive()
        chunks, more = [], True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return message
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
        self._received = True
        try:
            body = await self._without_fields(b"".join(chunks))
        except PoolbenchError as error:
            raise HTTPException(error.http_status, str(error)) from error
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message, send: Send) -> None:
        """Send a part of the response, with what belongs to it."""
        wish = self._call.wish
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            self._streams = headers.get("content-type", "").startswith("text/event-stream")
            self._unchanged = wish is None or message["status"] != HTTPStatus.OK
            self._start = message
            if self._unchanged or self._streams:
                await send(message)
        elif self._unchanged or message["type"] != "http.response.body":
            await send(message)
        elif self._streams:
            self._held += message.get("body", b"")
            *events, self._held = self._held.split(b"\n\n")
            body = b"".join(self._event(event) + b"\n\n" for event in events)
            more = message.get("more_body", False)
            await send({**message, "body": body if more else body + self._held})
        else:
            self._held += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_whole(send)

    async def _without_fields(self, body: bytes) -> bytes:
        if not any(mark in body for mark in (*_MARKS, *self._engine.marks)):
            return body
        try:
            values = json.loads(body)
        except ValueError:
            return body  # vLLM says what is wrong
        if not isinstance(values, dict):
            return body
        if self._path not in ROUTES:
            if Fields.taken_from(values):
                raise InputError(f"{STEERING} and {READING} are fields of {' and '.join(ROUTES)}, not of {self._path}")
            return body
        xargs = values.get("vllm_xargs")
        fields, of_xargs = Fields.taken_from(values), Fields.taken_from(xargs if isinstance(xargs, dict) else {})
        if fields and of_xargs:
            raise InputError(f"{STEERING} and {READING} stand in the body and in vllm_xargs; give one of both")
        wish = fields or of_xargs
        name = values.get("model")
        steered = SteeredName.parse(name) if isinstance(name, str) and name not in self._engine.names else None
        if steered is not None and steered.model in self._engine.names:
            if wish.steering is not None:
                raise InputError(f"the model {name} is steered already; name {steered.model}, or leave out {STEERING}")
            wish = replace(wish, steering=steering_of(steered, self._engine.vectors))
            self._steered, values["model"] = str(name), steered.model
        if wish:
            if values.get("use_beam_search"):
                raise InputError("texts of a beam search are neither steered nor read along; leave one of both out")
            self._call.wish = await self._engine.resolved(wish)
        return json.dumps(values).encode()

    async def _send_whole(self, send: Send) -> None:
        assert self._start is not None
        answer, status = self._named(json.loads(self._held)), HTTPStatus.OK
        try:
            for choice in answer["choices"]:
                self._add_facts(choice)
        except _UnprovenError as error:
            answer, status = error.body, HTTPStatus.INTERNAL_SERVER_ERROR
        body = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
        MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(body))
        await send({**self._start, "status": int(status)})
        await send({"type": "http.response.body", "body": body})

    def _event(self, event: bytes) -> bytes:
        """Return an event of a stream with what belongs to its choices."""
        prefix = b"data: "
        if not event.startswith(prefix + b"{"):
            return event
        chunk = self._named(json.loads(event[len(prefix) :]))
        try:
            for choice in chunk.get("choices", ()):
                self._add_facts(choice)
        except _UnprovenError as error:
            chunk = error.body
        return prefix + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()

    def _named(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the model as the request named it."""
        return answer | ({"model": self._steered} if self._steered and "model" in answer else {})

    def _add_facts(self, choice: dict[str, Any]) -> None:
        """Add the scores that came since the last chunk of a choice and, at its end, the receipt."""
        wish, text = self._call.wish, self._call.texts.get(choice["index"], TextFacts())
        assert wish is not None
        ended = choice.get("finish_reason") is not None
        if readings := wish.fields.readings:
            scores, text.scores = text.scores, []
            answers = list(_answers(readings, [reading.layer for reading in wish.readings], scores, ended=ended))
            choice[READING] = answers if wish.fields.in_list else answers[0]
        if wish.steering is not None and ended:
            if text.receipt is None:
                raise _UnprovenError(choice["index"])
            choice["steering_receipt"] = receipt_body(text.receipt, None)


class _UnprovenError(Exception):
    """A text that was to be steered has no receipt: vLLM made it in a way that the plug-in does not know."""

    def __init__(self, index: int) -> None:
        super().__init__(f"choice {index} has no steering receipt, so its text is discarded; report the request")
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        self.body = {"error": {"message": str(self), "type": status.phrase, "param": None, "code": int(status)}}


def _answers(
    readings: tuple[ReadingBody, ...], layers: list[int], scores: list[Scores], *, ended: bool
) -> Iterator[dict[str, Any]]:
    """Yield what was read along, by reading: a score for each token and, at the end, the layer."""
    for number, layer in enumerate(layers[: len(readings)]):
        answer: dict[str, Any] = {"scores": [values[number] for values in scores]}
        yield answer | ({"layer": layer} if ended else {})
