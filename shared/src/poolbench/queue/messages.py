"""Messages in a queue: their strict model, and the one function that parses them."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from poolbench.contracts.tasks import TASK_SCHEMA_VERSION, MalformedTaskError, TaskKind, parse_task
from poolbench.errors import InputError, shown
from poolbench.telemetry.traces import is_traceparent

MAX_DEPTH = 50
"""Levels of nested JSON. Our tasks have fewer than ten; a thousand overflow the stack of code that prints them."""
_PREFIX = "poolbench-"


def _parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raise InputError if the bytes are anything else, or hold unsafe values."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"the {what} is not UTF-8 ({error.reason} at byte {error.start}): {shown(raw[:40])}") from None
    except RecursionError:
        raise InputError(f"the {what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        reason = "it is empty" if not raw.strip() else str(error)
        raise InputError(f"the {what} is not JSON ({reason}): {shown(raw[:40])}") from None
    if not isinstance(value, dict):
        raise InputError(f"the {what} is not a JSON object: {shown(value)}")
    _check_values(value, what)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _check_values(root: Any, what: str) -> None:
    """Raise InputError for what would break readers: depth, text without UTF-8, and numbers that are not finite."""
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
"""The method of a replica that works on a task, as Ray Serve knows it."""

MAX_RETRIES = 2
"""Deliveries of a task beyond the first when the infrastructure under it fails."""

MAX_MESSAGE_BYTES = 4 * 2**20
"""A task is small JSON: its payloads lie in the object store."""

MAX_PAUSE_S = 60.0
"""A retry pauses for seconds."""

KEPT_BYTES = 64 * 1024
"""Bytes of a message that its dead letter keeps if it is not understood."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Message(_Strict):
    """A message of PoolBench: a task, its number of earlier deliveries, and the pause before its delivery.

    The pause is a duration, which the consumer measures from the moment when it finds the message. A time of day would
    compare the clocks of two machines.
    """

    task: dict[str, Any]
    retries: int = Field(default=0, ge=0, le=MAX_RETRIES)
    pause_s: float = Field(default=0, ge=0, le=MAX_PAUSE_S, allow_inf_nan=False)
    sent_at: float | None = Field(
        default=None, ge=0, le=2.0**36, description="seconds since the epoch, by the sender's clock"
    )
    traceparent: Annotated[
        str | None,
        BeforeValidator(lambda value: value if is_traceparent(value) else None),
        Field(description="header of W3C Trace Context"),
    ] = None
    step: int | None = Field(default=None, ge=0, lt=2**31, description="version of the task's step for the sender")
    store: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$", description="id of the sender's object store")

    @property
    def task_id(self) -> str:
        """Return the id of the task."""
        return str(self.task["task_id"])

    def encode(self) -> bytes:
        """Return the message as it lies in a broker."""
        return self.model_dump_json().encode()


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
        message = _validated(Message.model_validate, _parse_object(raw, "message"))
        # One of another version is left to the worker: it records the failure, where the driver that sent it reads it.
        if _validated(_Head.model_validate, message.task, "task").schema_version == TASK_SCHEMA_VERSION:
            _validated(parse_task, message.task, "task")
    except InputError as error:
        return Misunderstood.of(str(error), raw)
    return message


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


def _first_errors(error: ValidationError, place: str) -> str:
    """Return the first three errors, each with its place and the value received."""
    issues = error.errors(include_url=False, include_context=False)
    parts = []
    for issue in issues[:3]:
        where = ".".join(str(part) for part in (place, *issue["loc"]) if part != "") or "message"
        parts.append(f"{shown_text(where[:100])}: {issue['msg']} (received {shown(issue['input'])})")
    return "; ".join(parts) + (f"; and {len(issues) - 3} more" if len(issues) > 3 else "")
