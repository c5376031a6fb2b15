"""Dead letters: messages that were not understood, and tasks that failed on their last attempt."""

import base64
import json
import uuid
from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from poolbench.queue.envelope import MAX_MESSAGE_BYTES, Misunderstood
from poolbench.queue.strict import shown, shown_text

LETTER_SCHEMA_VERSION = 1
MAX_LETTER_BYTES = 2 * MAX_MESSAGE_BYTES
"""A letter holds at most a message, once as JSON or its start as base64."""

NEWEST_SHOWN = 3
"""How many dead letters of each service the status pages show."""

_MAX_REASON = 2000


class DeadLetter(BaseModel):
    """One dead letter."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: Literal[1] = 1
    letter_id: str = Field(default_factory=lambda: uuid.uuid4().hex)  # name of the letter
    service: str  # service of the queue
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))  # when the message was given up
    reason: str
    task_id: str = ""  # id of the task if one was understood, else empty
    task: dict[str, Any] | None = None  # the task, if one was understood
    body: str = ""  # first bytes of a message that was not understood, in base64
    num_bytes: int = 0  # size of the message

    @field_validator("letter_id", "service", "reason", "task_id")
    @classmethod
    def _printable(cls, text: str) -> str:
        """Make letters safe to print on terminals: others may write into a broker too."""
        return shown_text(text[:_MAX_REASON])

    @classmethod
    def of_message(cls, service: str, found: Misunderstood) -> Self:
        """Make the letter of a message that was not understood."""
        body = base64.b64encode(found.raw).decode()
        return cls(service=service, reason=f"not understood: {found.reason}", body=body, num_bytes=found.num_bytes)

    @classmethod
    def of_task(cls, service: str, task: dict[str, Any], reason: str) -> Self:
        """Make the letter of a task that failed after its retries, or that no worker of the service can do."""
        num_bytes = len(json.dumps(task).encode())
        return cls(service=service, reason=reason, task_id=str(task.get("task_id")), task=task, num_bytes=num_bytes)

    def encode(self) -> bytes:
        """Return the letter as stored in a broker."""
        return self.model_dump_json().encode()

    @property
    def line(self) -> str:
        """Return the letter on one line, for status pages."""
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.task_id or f'a message of {self.num_bytes} bytes'}: {self.reason}"


def read_letter(raw: bytes | Misunderstood, service: str) -> DeadLetter:
    """Parse a dead letter. Other bytes are wrapped as a letter, because a reader must not fail on them."""
    if isinstance(raw, Misunderstood):
        return DeadLetter.of_message(service, raw)
    try:
        return DeadLetter.model_validate_json(raw).model_copy(update={"service": service})
    except (ValidationError, RecursionError):
        return DeadLetter.of_message(service, Misunderstood.of(f"no dead letter of ours: {shown(raw[:40])}", raw))
