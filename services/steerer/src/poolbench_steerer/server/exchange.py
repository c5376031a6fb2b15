"""One HTTP request and its response: fields about steering are taken from the body, receipts and scores added."""

import json
import random
from dataclasses import replace
from http import HTTPStatus

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Send

from poolbench.errors import InputError, PoolbenchError, ReceiptError
from poolbench_steerer.server.facts import Call, Facts, error_chunk
from poolbench_steerer.server.fields import READING, STEERING, Fields, resolved, steering_of
from poolbench_steerer.server.vectors import FileVectors
from poolbench_steerer.steered_names import SteeredName

#: Where a body has the fields, and a response has receipts.
ROUTES = ("/v1/completions", "/v1/chat/completions")
_MARKS = (STEERING.encode(), READING.encode(), b"\\u", b"\\/")  # keys and names may be escaped


class Exchange:
    """A request on its way to vLLM's routes, and the response on its way back."""

    def __init__(self, served: FileVectors, path: str, call: Call) -> None:
        self._served, self._path, self._call = served, path, call
        self._received = False
        self._start: Message | None = None
        self._streams = self._unchanged = False
        self._held = b""
        self._facts: Facts | None = None  # of a request that is steered or read along

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
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            self._streams = headers.get("content-type", "").startswith("text/event-stream")
            self._unchanged = self._facts is None or message["status"] != HTTPStatus.OK
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
        if not any(mark in body for mark in (*_MARKS, *self._served.marks)):
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
        model = ""
        steered = SteeredName.parse(name) if isinstance(name, str) and name not in self._served.names else None
        if steered is not None and steered.model in self._served.names:
            if wish.steering is not None:
                raise InputError(f"the model {name} is steered already; name {steered.model}, or leave out {STEERING}")
            wish = replace(wish, steering=steering_of(steered, self._served.vectors))
            model, values["model"] = str(name), steered.model
        if wish:
            if values.get("use_beam_search"):
                raise InputError("texts of a beam search are neither steered nor read along; leave one of both out")
            call = self._call
            call.wish = await resolved(self._served.engine, wish, self._served.vectors)
            call.echo = self._path == ROUTES[0] and values.get("echo") is True
            call.echo_alone = call.echo and values.get("max_tokens") == 0
            if values.get("seed") is None:  # so that every text can be repeated
                values["seed"] = random.getrandbits(31)
            self._facts = Facts(call, model, values["seed"])
        return json.dumps(values).encode()

    async def _send_whole(self, send: Send) -> None:
        assert self._start is not None and self._facts is not None
        status = HTTPStatus.OK
        try:
            answer = self._facts.added(json.loads(self._held))
        except ReceiptError as error:
            answer, status = error_chunk(error), HTTPStatus.INTERNAL_SERVER_ERROR
        body = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
        MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(body))
        await send({**self._start, "status": int(status)})
        await send({"type": "http.response.body", "body": body})

    def _event(self, event: bytes) -> bytes:
        """Return an event of a stream with what belongs to its choices."""
        prefix = b"data: "
        if not event.startswith(prefix + b"{"):
            return event
        assert self._facts is not None
        try:
            chunk = self._facts.added(json.loads(event[len(prefix) :]))
        except ReceiptError as error:
            chunk = error_chunk(error)
        return prefix + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()
