"""Messages that nobody can understand, and what their dead letter says: one table for every broker."""

import base64
import json
from typing import Any

from poolbench.contracts.tasks import Task
from poolbench.queue.envelope import MAX_MESSAGE_BYTES, Message

QUEUE = "poolbench-prober"
NOTHING: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def echo(value: int, kind: str = "prober.echo") -> Task:
    """A task that the consumer of the tests can do."""
    return Task(kind=kind, outputs={"out": f"{kind}.{value}"}, params={"value": value})


def good_envelope(queue: str = QUEUE) -> dict[str, Any]:
    """A message that would be understood; its tag is fixed, so that a message is made again from its number."""
    envelope = Message(echo(0).model_dump(mode="json")).envelope(queue)
    return envelope | {"properties": envelope["properties"] | {"delivery_tag": "0" * 8}}


def _raw(envelope: Any) -> bytes:
    return json.dumps(envelope).encode()


def _with(place: str, **fields: Any) -> bytes:
    """The good envelope with other fields at a place: its headers, its properties, or the envelope itself."""
    envelope = good_envelope()
    if place:
        return _raw(envelope | {place: envelope[place] | fields})
    return _raw(envelope | {name.replace("_", "-"): value for name, value in fields.items()})


def _without(*path: str) -> bytes:
    envelope = good_envelope()
    inner = envelope
    for part in path[:-1]:
        inner = inner[part]
    del inner[path[-1]]
    return _raw(envelope)


def _body(body: Any) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _with("", body=base64.b64encode(raw).decode())


def _task(**fields: Any) -> bytes:
    return _body([[], {"task": echo(0).model_dump(mode="json") | fields}, NOTHING])


def _embedded(**embedded: Any) -> bytes:
    return _body([[], {"task": echo(0).model_dump(mode="json")}, NOTHING | embedded])


_CALLBACK = [{"task": "run_task", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}]
#: Headers on which Celery would act.
_HEADERS: dict[str, Any] = {
    "task": "celery.chord_unlock",
    "id": 7,
    "timelimit": [1, 1],
    "pause_s": 61,
    "expires": "2020-01-01T00:00:00+00:00",
    "retries": 10**30,
    "group": "g",
    "compression": "application/x-gzip",
}
_ENVELOPE: dict[str, Any] = {
    "content-type": "application/x-python-serialize",
    "content-encoding": "klingon",
    "headers": None,
    "properties": "x",
    "body": {},
}

POISON: dict[str, tuple[bytes, str]] = {
    # not a JSON object
    "garbage": (b"garbage", "not JSON"),
    "empty": (b"", "it is empty"),
    "invalid UTF-8": (b'{"body": "\xff\xfe"}', "not UTF-8"),
    "list": (b"[1,2]", "not a JSON object"),
    "long number": (b"9" * 5000, "not JSON"),
    "lone surrogate": (b'{"body": "\\ud800"}', "lone surrogate"),
    "NaN": (b'{"body": NaN}', "NaN"),
    "infinite": (b'{"body": 1e999}', "too large"),
    "truncated": (_raw(good_envelope())[:-20], "not JSON"),
    "deep list": (b"[" * 100_000, "nested deeper"),
    "deep header": (_with("headers", origin=json.loads("[" * 60 + "]" * 60)), "nested deeper"),
    "huge task": (_task(run_id="x" * MAX_MESSAGE_BYTES), "at most 4194304"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os.", "not UTF-8"),
    # bad envelopes
    "empty object": (b"{}", "body: Field required"),
    **{f"another {name}": (_with("", **{name: value}), name) for name, value in _ENVELOPE.items()},
    **{f"header {name}": (_with("headers", **{name: value}), f"headers.{name}") for name, value in _HEADERS.items()},
    "no id": (_without("headers", "id"), "headers.id"),
    "pause is true": (_with("headers", pause_s=True), "headers.pause_s"),
    "pause is negative": (_with("headers", pause_s=-1), "headers.pause_s"),
    "retries is negative": (_with("headers", retries=-1_000_000), "headers.retries"),
    "priority is large": (_with("properties", priority=10**30), "properties.priority"),
    "no body encoding": (_without("properties", "body_encoding"), "properties.body_encoding"),
    # bad bodies
    "no body": (_without("body"), "body: Field required"),
    "body is not base64": (_with("", body="?!"), "not base64"),
    "body is not ASCII": (_with("", body="\u00fcber"), "not base64"),
    "body is bytes": (_body(b"\x80\x04K*."), "body is not UTF-8"),
    "body is short": (_body([[]]), "Field required"),
    "body of protocol 1": (_body({"task": "run_task", "id": "x", "args": [], "kwargs": {}}), "body is not a JSON list"),
    "deep body": (_body(b"[" * 50_000), "nested deeper"),
    "arguments": (_body([["x"], {"task": {}}, NOTHING]), "0"),
    "no arguments": (_body([[], {}, NOTHING]), "task: Field required"),
    "further arguments": (_body([[], {"task": {}, "final": True}, NOTHING]), "final"),
    **{f"embedded {name}": (_embedded(**{name: _CALLBACK}), name) for name in (*NOTHING, "after")},
    # JSON, but no task of ours
    "task is text": (_body([[], {"task": "prober.echo"}, NOTHING]), "task"),
    "task is empty": (_body([[], {"task": {}}, NOTHING]), "schema_version: Field required"),
    "task without outputs": (_task(outputs={}), "outputs"),
    "task with a field more": (_task(evil=1), "evil"),
    "typed object": (_task(params={"x": {"__type__": "uuid", "__value__": {"hex": "x"}}}), "object of type"),
    "id is a path": (_task(task_id="../../../etc/passwd"), "task_id"),
    "id with NUL": (_task(task_id="a\0b"), "task_id"),
    "id is long": (_task(task_id="x" * 5000), "task_id"),
    "kind is no name": (_task(kind="../x"), "kind"),
}
