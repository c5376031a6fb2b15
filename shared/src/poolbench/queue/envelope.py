"""The strict model of a queue message, and the one function that parses it.

Nothing from a broker reaches Celery or kombu before `understand` has parsed it. They receive a new envelope that is
made of the few checked values. So a message can neither break them nor ask anything of them.
"""

import base64
import binascii
import json
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from poolbench.contracts.tasks import TASK_SCHEMA_VERSION, MalformedTaskError, TaskKind, parse_task
from poolbench.contracts.wire import JSON_TYPE
from poolbench.errors import InputError, shown
from poolbench.telemetry.traces import TRACEPARENT, is_traceparent

MAX_DEPTH = 50
"""Levels of nested JSON. Our tasks have fewer than ten; a thousand overflow the stack of code that prints them."""
_PREFIX = "poolbench-"


def parse_json(raw: bytes, what: str, kind: type) -> Any:
    """Parse a JSON object (`kind` dict) or list.

    Raise InputError if the bytes are anything else, or hold unsafe values.
    """
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"the {what} is not UTF-8 ({error.reason} at byte {error.start}): {shown(raw[:40])}") from None
    except RecursionError:
        raise InputError(f"the {what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        reason = "it is empty" if not raw.strip() else str(error)
        raise InputError(f"the {what} is not JSON ({reason}): {shown(raw[:40])}") from None
    if not isinstance(value, kind):
        raise InputError(f"the {what} is not a JSON {'object' if kind is dict else 'list'}: {shown(value)}")
    _check_values(value, what)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _check_values(root: Any, what: str) -> None:
    """Raise InputError for what would break readers: depth, text without UTF-8, typed objects."""
    todo = [(root, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"the {what} is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            _check_text(value, what)
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"the {what} has a number that is too large")
        elif isinstance(value, list):
            todo += [(child, depth + 1) for child in value]
        elif isinstance(value, dict):
            if "__type__" in value:  # kombu would make an object of it
                raise InputError(f"the {what} asks for an object of type {shown(value['__type__'])}")
            for key, child in value.items():
                _check_text(key, what)
                todo.append((child, depth + 1))


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} has text with a lone surrogate: {shown(text)}") from None


def shown_text(text: str) -> str:
    """Return a text on one line. Characters that a terminal would act on are escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def queue_name(service: str) -> str:
    """Return the name of the queue that a service consumes."""
    return f"{_PREFIX}{service}"


def failed_queue_name(service: str) -> str:
    """Return the name of the queue that keeps a service's dead letters."""
    return f"{queue_name(service)}.failed"


def service_of(queue: str) -> str:
    """Return the service that consumes a queue."""
    return queue.removeprefix(_PREFIX)


_T = TypeVar("_T")

TASK_NAME = "run_task"
"""The only Celery task: the kind of work is a field of the task itself."""

MAX_RETRIES = 2
"""Deliveries of a task beyond the first when the infrastructure under it fails."""

MAX_MESSAGE_BYTES = 4 * 2**20
"""A task is small JSON: its payloads lie in the object store."""

MAX_PAUSE_S = 60.0
"""A retry pauses for seconds. A consumer may keep a message in memory until then, where no observer sees it."""

SENT_AT = "poolbench_sent_at"
"""Header with the time at which a task was sent, for measurements only."""

STEP, STORE = "poolbench_step", "poolbench_store"
"""Headers with the version that the step of a task has for its sender, and the id of the sender's object store."""

KEPT_BYTES = 64 * 1024
"""Bytes of a message that its dead letter keeps if it is not understood."""


@dataclass(frozen=True)
class Message:
    """A message of PoolBench: a task, its number of earlier deliveries, and the pause before its delivery.

    The pause is a duration, which the consumer measures from the moment when it finds the message. A time of day would
    compare the clocks of two machines.
    """

    task: dict[str, Any]
    retries: int = 0
    pause_s: float = 0.0
    sent_at: float | None = None  # seconds since the epoch, by the clock of the sender
    traceparent: str | None = None  # header of W3C Trace Context
    step: int | None = None  # version that the step of the task has for the sender
    store: str | None = None  # id of the sender's object store

    @property
    def task_id(self) -> str:
        """Return the id of the task, whatever the id of the message was."""
        return str(self.task["task_id"])

    def envelope(self, queue: str) -> dict[str, Any]:
        """Return the message in the format of Celery and kombu, which names the task and requests nothing else.

        Celery in this process holds a message until its `eta`, and works on other messages meanwhile. Celery converts
        the `eta` into a time of the monotonic clock at once.
        """
        nothing = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        eta = (datetime.now(UTC) + timedelta(seconds=self.pause_s)).isoformat() if self.pause_s else None
        return {
            "body": base64.b64encode(json.dumps([[], {"task": self.task}, nothing]).encode()).decode(),
            "content-type": JSON_TYPE,
            "content-encoding": "utf-8",
            "headers": {
                "lang": "py",
                "task": TASK_NAME,
                "id": self.task_id,
                "root_id": self.task_id,
                "retries": self.retries,
                "eta": eta,
                "timelimit": [None, None],
                SENT_AT: self.sent_at,
                TRACEPARENT: self.traceparent,
                STEP: self.step,
                STORE: self.store,
            },
            "properties": {
                "correlation_id": self.task_id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }


@dataclass(frozen=True)
class Misunderstood:
    """A message that is not a valid PoolBench message: the reason, its first bytes, and its total number of bytes."""

    reason: str
    raw: bytes = field(default=b"", repr=False)
    num_bytes: int = 0

    @classmethod
    def of(cls, reason: str, raw: bytes) -> "Misunderstood":
        """Make the record of an invalid message. Only the first 64 KiB of the message are stored."""
        return cls(reason, raw[:KEPT_BYTES], len(raw))


def understand(raw: bytes) -> Message | Misunderstood:
    """Parse a message from the broker. For invalid bytes, return `Misunderstood` instead of raising an error."""
    if len(raw) > MAX_MESSAGE_BYTES:
        return Misunderstood.of(f"{len(raw)} bytes; at most {MAX_MESSAGE_BYTES} are allowed", raw)
    try:
        envelope = _validated(Envelope.model_validate, parse_json(raw, "message", dict))
        body = _validated(_BODY.validate_python, parse_json(_decode(envelope.body), "body", list), "body")
        task = body[1].task
        # One of another version is left to the worker: it records the failure, where the driver that sent it reads it.
        if _validated(_Head.model_validate, task, "task").schema_version == TASK_SCHEMA_VERSION:
            _validated(parse_task, task, "task")
    except InputError as error:
        return Misunderstood.of(str(error), raw)
    headers = envelope.headers
    timing = (headers.retries, headers.pause_s, headers.poolbench_sent_at)
    return Message(task, *timing, headers.traceparent, headers.poolbench_step, headers.poolbench_store)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Headers(_Strict):
    """Headers that we or Celery act on. Others, of which newer releases have more, are not passed on."""

    task: Literal["run_task"]
    id: str = Field(min_length=1)
    retries: int = Field(0, ge=0, le=MAX_RETRIES)
    pause_s: float = Field(0, ge=0, le=MAX_PAUSE_S, allow_inf_nan=False)
    expires: None = None
    timelimit: list[None] | None = None
    group: None = None
    compression: None = None
    poolbench_sent_at: float | None = Field(None, ge=0, le=2.0**36)
    poolbench_step: int | None = Field(None, ge=0, lt=2**31)
    poolbench_store: str | None = Field(None, pattern=r"^[0-9a-f]{32}$")
    traceparent: Annotated[str | None, BeforeValidator(lambda value: value if is_traceparent(value) else None)] = None


class _Properties(_Strict):
    body_encoding: Literal["base64"]
    priority: Literal[0] = 0  # nothing of ours sends another


class Envelope(_Strict):
    """A message as Celery writes it for us, without reply address and tags."""

    body: str
    content_type: Literal["application/json"] = Field(alias="content-type")
    content_encoding: Literal["utf-8"] = Field(alias="content-encoding")
    headers: _Headers
    properties: _Properties


class _Arguments(_Strict):
    model_config = ConfigDict(extra="forbid")

    task: dict[str, Any]


class _Embedded(_Strict):
    """What Celery would do after the task: nothing."""

    model_config = ConfigDict(extra="forbid")

    callbacks: None = None
    errbacks: None = None
    chain: None = None
    chord: None = None


_BODY = TypeAdapter(tuple[tuple[()], _Arguments, _Embedded])


class _Head(_Strict):
    """Fields of a task of any version."""

    schema_version: int
    task_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)
    kind: TaskKind


def _validated(validate: Callable[[Any], _T], value: Any, place: str = "") -> _T:
    try:
        return validate(value)
    except ValidationError as error:
        raise InputError(_first_errors(error, place)) from error
    except MalformedTaskError as error:
        assert isinstance(error.__cause__, ValidationError)  # the version was looked at
        raise InputError(_first_errors(error.__cause__, place)) from error


def _decode(body: str) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"the body is not base64 ({error}): {shown(body)}") from error


def _first_errors(error: ValidationError, place: str) -> str:
    """Return the first three errors, each with its place and the value received."""
    issues = error.errors(include_url=False, include_context=False)
    parts = []
    for issue in issues[:3]:
        where = ".".join(str(part) for part in (place, *issue["loc"]) if part != "") or "message"
        parts.append(f"{shown_text(where[:100])}: {issue['msg']} (received {shown(issue['input'])})")
    return "; ".join(parts) + (f"; and {len(issues) - 3} more" if len(issues) > 3 else "")
