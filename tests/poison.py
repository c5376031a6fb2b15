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


def _without(*path: str) -> bytes:
    envelope = good_envelope()
    inner = envelope
    for part in path[:-1]:
        inner = inner[part]
    del inner[path[-1]]
    return _raw(envelope)


def _top(**fields: Any) -> bytes:
    return _raw(good_envelope() | {name.replace("_", "-"): value for name, value in fields.items()})


def _header(**headers: Any) -> bytes:
    envelope = good_envelope()
    return _raw(envelope | {"headers": envelope["headers"] | headers})


def _property(**properties: Any) -> bytes:
    envelope = good_envelope()
    return _raw(envelope | {"properties": envelope["properties"] | properties})


def _body(body: Any) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _raw(good_envelope() | {"body": base64.b64encode(raw).decode()})


def _task(**fields: Any) -> bytes:
    return _body([[], {"task": echo(0).model_dump(mode="json") | fields}, NOTHING])


def _embedded(**embedded: Any) -> bytes:
    return _body([[], {"task": echo(0).model_dump(mode="json")}, NOTHING | embedded])


_CALLBACK = [{"task": "run_task", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}]

POISON: dict[str, tuple[bytes, str]] = {
    # not a JSON object
    "garbage": (b"garbage", "not JSON"),
    "empty": (b"", "it is empty"),
    "blank": (b" \n\t ", "it is empty"),
    "zeros": (b"\0" * 64, "not JSON"),
    "invalid UTF-8": (b'{"body": "\xff\xfe"}', "not UTF-8"),
    "UTF-16": ('{"body": ""}'.encode("utf-16"), "not UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf{}", "not JSON"),
    "list": (b"[1,2]", "not a JSON object"),
    "null": (b"null", "not a JSON object"),
    "true": (b"true", "not a JSON object"),
    "number": (b"17", "not a JSON object"),
    "long number": (b"9" * 5000, "not JSON"),
    "string": (b'"run_task"', "not a JSON object"),
    "lone surrogate": (b'{"body": "\\ud800"}', "lone surrogate"),
    "NaN": (b'{"body": NaN}', "NaN"),
    "infinite": (b'{"body": 1e999}', "too large"),
    "truncated": (_raw(good_envelope())[:-20], "not JSON"),
    "deep list": (b"[" * 100_000, "nested deeper"),
    "deep object": (b'{"a":' * 100_000, "nested deeper"),
    "deep header": (_header(origin=json.loads("[" * 60 + "]" * 60)), "nested deeper"),
    "huge": (b" " * (MAX_MESSAGE_BYTES + 1), "at most 4194304"),
    "huge task": (_task(run_id="x" * MAX_MESSAGE_BYTES), "at most 4194304"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os.", "not UTF-8"),
    "YAML": (b"!!python/object/apply:os.system ['true']", "not JSON"),
    # bad envelopes
    "empty object": (b"{}", "body: Field required"),
    "no headers": (_without("headers"), "headers: Field required"),
    "headers are a list": (_top(headers=[]), "headers"),
    "headers are null": (_top(headers=None), "headers"),
    "no properties": (_without("properties"), "properties: Field required"),
    "properties are text": (_top(properties="x"), "properties"),
    "no content type": (_without("content-type"), "content-type"),
    "pickle content": (_top(content_type="application/x-python-serialize"), "content-type"),
    "YAML content": (_top(content_type="application/x-yaml"), "content-type"),
    "unknown content": (_top(content_type="x/y"), "content-type"),
    "no content encoding": (_without("content-encoding"), "content-encoding"),
    "binary encoding": (_top(content_encoding="binary"), "content-encoding"),
    "unknown encoding": (_top(content_encoding="klingon"), "content-encoding"),
    "no task name": (_without("headers", "task"), "headers.task"),
    "unknown task": (_header(task="os.system"), "headers.task"),
    "builtin task": (_header(task="celery.backend_cleanup"), "headers.task"),
    "chord task": (_header(task="celery.chord_unlock"), "headers.task"),
    "task name is a list": (_header(task=["run_task"]), "headers.task"),
    "no id": (_without("headers", "id"), "headers.id"),
    "id is a number": (_header(id=7), "headers.id"),
    "timelimit is text": (_header(timelimit="x"), "headers.timelimit"),
    "timelimit": (_header(timelimit=[1, 1]), "headers.timelimit"),
    "pause is text": (_header(pause_s="2"), "headers.pause_s"),
    "pause is null": (_header(pause_s=None), "headers.pause_s"),
    "pause is true": (_header(pause_s=True), "headers.pause_s"),
    "pause is negative": (_header(pause_s=-1), "headers.pause_s"),
    "pause is long": (_header(pause_s=61), "headers.pause_s"),
    "expires": (_header(expires="2020-01-01T00:00:00+00:00"), "headers.expires"),
    "retries is text": (_header(retries="x"), "headers.retries"),
    "retries is negative": (_header(retries=-1_000_000), "headers.retries"),
    "retries is large": (_header(retries=10**30), "headers.retries"),
    "retries is null": (_header(retries=None), "headers.retries"),
    "retries is true": (_header(retries=True), "headers.retries"),
    "group": (_header(group="g"), "headers.group"),
    "compressed": (_header(compression="application/x-gzip"), "headers.compression"),
    "priority is text": (_property(priority="x"), "properties.priority"),
    "priority is large": (_property(priority=10**30), "properties.priority"),
    "priority is negative": (_property(priority=-1), "properties.priority"),
    "no body encoding": (_without("properties", "body_encoding"), "properties.body_encoding"),
    "unknown body encoding": (_property(body_encoding="rot13"), "properties.body_encoding"),
    # bad bodies
    "no body": (_without("body"), "body: Field required"),
    "body is null": (_top(body=None), "body"),
    "body is an object": (_top(body={}), "body"),
    "body is not base64": (_top(body="?!"), "not base64"),
    "body is not ASCII": (_top(body="\u00fcber"), "not base64"),
    "body is empty": (_body(b""), "body is not JSON"),
    "body is bytes": (_body(b"\x80\x04K*."), "body is not UTF-8"),
    "body is a number": (_body(7), "body is not a JSON list"),
    "body is short": (_body([[]]), "Field required"),
    "body of protocol 1": (_body({"task": "run_task", "id": "x", "args": [], "kwargs": {}}), "body is not a JSON list"),
    "deep body": (_body(b"[" * 50_000), "nested deeper"),
    "arguments": (_body([["x"], {"task": {}}, NOTHING]), "0"),
    "no arguments": (_body([[], {}, NOTHING]), "task: Field required"),
    "further arguments": (_body([[], {"task": {}, "final": True}, NOTHING]), "final"),
    "callbacks": (_embedded(callbacks=_CALLBACK), "callbacks"),
    "errbacks": (_embedded(errbacks=_CALLBACK), "errbacks"),
    "chain": (_embedded(chain=_CALLBACK), "chain"),
    "chord": (_embedded(chord=_CALLBACK[0]), "chord"),
    "unknown embedded": (_embedded(after=1), "after"),
    # JSON, but no task of ours
    "task is text": (_body([[], {"task": "prober.echo"}, NOTHING]), "task"),
    "task is empty": (_body([[], {"task": {}}, NOTHING]), "schema_version: Field required"),
    "task without outputs": (_task(outputs={}), "outputs"),
    "task with a field more": (_task(evil=1), "evil"),
    "task of wrong types": (_task(params=[]), "params"),
    "typed object": (_task(params={"x": {"__type__": "uuid", "__value__": {"hex": "x"}}}), "object of type"),
    "id is a path": (_task(task_id="../../../etc/passwd"), "task_id"),
    "id with NUL": (_task(task_id="a\0b"), "task_id"),
    "id is long": (_task(task_id="x" * 5000), "task_id"),
    "kind is no name": (_task(kind="../x"), "kind"),
}
