"""Messages that nobody can understand, and what their dead letter says: one table for every broker."""

import json
from typing import Any

from poolbench.contracts.tasks import Task
from poolbench.queue.messages import MAX_MESSAGE_BYTES, Message

QUEUE = "poolbench-prober"


def echo(value: int, kind: str = "prober.echo") -> Task:
    """A task that the consumer of the tests can do."""
    return Task(kind=kind, outputs={"out": f"{kind}.{value}"}, params={"value": value})


def good_message() -> dict[str, Any]:
    """The content of a message that would be understood."""
    content: dict[str, Any] = json.loads(Message(task=echo(0).model_dump(mode="json")).encode())
    return content


def _with(**fields: Any) -> bytes:
    """The good message with other fields."""
    return json.dumps(good_message() | fields).encode()


def _task(**fields: Any) -> bytes:
    return _with(task=echo(0).model_dump(mode="json") | fields)


_FIELDS: dict[str, Any] = {"pause_s": 61, "retries": 10**30, "sent_at": "now", "step": -1, "store": "../x"}

POISON: dict[str, tuple[bytes, str]] = {
    # not a JSON object
    "garbage": (b"garbage", "not JSON"),
    "empty": (b"", "it is empty"),
    "invalid UTF-8": (b'{"task": "\xff\xfe"}', "not UTF-8"),
    "list": (b"[1,2]", "not a JSON object"),
    "long number": (b"9" * 5000, "not JSON"),
    "lone surrogate": (b'{"task": "\\ud800"}', "lone surrogate"),
    "NaN": (b'{"task": NaN}', "NaN"),
    "infinite": (b'{"task": 1e999}', "too large"),
    "truncated": (_with()[:-20], "not JSON"),
    "deep list": (b"[" * 100_000, "nested deeper"),
    "deep field": (_with(origin=json.loads("[" * 60 + "]" * 60)), "nested deeper"),
    "huge task": (_task(run_id="x" * MAX_MESSAGE_BYTES), "at most 4194304"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os.", "not UTF-8"),
    # bad fields
    "empty object": (b"{}", "task: Field required"),
    "of Celery": (b'{"body": "W10=", "headers": {"task": "run_task"}, "properties": {}}', "task: Field required"),
    **{f"another {name}": (_with(**{name: value}), f"{name}: ") for name, value in _FIELDS.items()},
    "pause is true": (_with(pause_s=True), "pause_s"),
    "pause is negative": (_with(pause_s=-1), "pause_s"),
    "retries is negative": (_with(retries=-1_000_000), "retries"),
    # JSON, but no task of ours
    "task is text": (_with(task="prober.echo"), "task"),
    "task is empty": (_with(task={}), "schema_version: Field required"),
    "task without outputs": (_task(outputs={}), "outputs"),
    "task with a field more": (_task(evil=1), "evil"),
    "id is a path": (_task(task_id="../../../etc/passwd"), "task_id"),
    "id with NUL": (_task(task_id="a\0b"), "task_id"),
    "id is long": (_task(task_id="x" * 5000), "task_id"),
    "kind is no name": (_task(kind="../x"), "kind"),
}
