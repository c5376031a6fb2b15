"""Dead letters: messages that were not understood, and tasks that failed on their last attempt."""

import base64
import hashlib
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from poolbench.contracts.tasks import Task, parse_task
from poolbench.errors import InputError, shown
from poolbench.queue.messages import Message, Misunderstood, shown_text, understand

NEWEST_SHOWN = 3
#: Letters of a service that are kept; the oldest of more are removed.
MOST_KEPT = 5000
"""How many dead letters of each service the status pages show."""

UNDATED = datetime.fromtimestamp(0, UTC)
"""Time of a letter that none of our writers made: it does not say when it came."""

_MAX_REASON = 2000
_MAX_KIND = 64


class DeadLetter(BaseModel):
    """One dead letter."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: Literal[1] = 1
    # Stored, it makes two letters differ. A reader replaces it by a hash of what is stored, which no writer can choose.
    letter_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    service: str  # service of the queue
    at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))  # when the message was given up
    reason: str
    task_id: str = ""  # id of the task if one was understood, else empty
    task: dict[str, Any] | None = None  # the task, if one was understood
    body: str = ""  # first bytes of a message that was not understood, in base64
    num_bytes: int = Field(0, ge=0, lt=2**63)  # size of the message

    @field_validator("letter_id", "service", "reason", "task_id")
    @classmethod
    def _printable(cls, text: str) -> str:
        """Make letters safe to print on terminals: others may write into a broker too."""
        return shown_text(text[:_MAX_REASON])[:_MAX_REASON]  # an escape is up to ten characters

    @field_validator("at")
    @classmethod
    def _in_utc(cls, at: datetime) -> datetime:
        try:
            return at.astimezone(UTC)
        except OverflowError:
            raise ValueError("the time is out of range") from None

    @classmethod
    def of_message(cls, service: str, found: Misunderstood) -> Self:
        """Make the letter of a message that was not understood."""
        body = base64.b64encode(found.raw).decode()
        return cls(service=service, reason=f"not understood: {found.reason}", body=body, num_bytes=found.num_bytes)

    @classmethod
    def of_task(cls, service: str, task: dict[str, Any], reason: str) -> Self:
        """Make the letter of a task that failed after its retries, or that no worker of the service can run."""
        num_bytes = len(json.dumps(task).encode())
        return cls(service=service, reason=reason, task_id=str(task.get("task_id")), task=task, num_bytes=num_bytes)

    def encode(self) -> bytes:
        """Return the letter as stored in a broker."""
        return self.model_dump_json().encode()

    @property
    def kind(self) -> str:
        """Return the kind of the task, safe to print, or "" for a message that is not a task."""
        return shown_text(str((self.task or {}).get("kind", ""))[:_MAX_KIND])

    @property
    def content(self) -> bytes:
        """Return the kept bytes of a message that was not understood."""
        try:
            return base64.b64decode(self.body, validate=True)
        except ValueError:  # another program wrote the letter
            return self.body.encode()

    def row(self) -> dict[str, Any]:
        """Return the letter's fields for a list. The time is None if it is unknown."""
        return {
            "id": self.letter_id,
            "service": self.service,
            "at": None if self.at == UNDATED else self.at.isoformat(timespec="seconds"),
            "task_id": self.task_id,
            "kind": self.kind,
            "size": self.num_bytes,
            "reason": self.reason,
        }

    def details(self) -> dict[str, Any]:
        """Return everything: the fields of `row`, the task, or the kept bytes of a message.

        The bytes are text without control characters if they are UTF-8, else base64.
        """
        fields = {**self.row(), "task": self.task}
        if self.task is not None or not self.body:
            return fields
        try:
            text = self.content.decode("utf-8")
        except UnicodeDecodeError:
            return {**fields, "body": shown_text(self.body)}
        return {**fields, "text": "\n".join(map(shown_text, text.split("\n")))}

    @property
    def when(self) -> str:
        """Return the time for people, in UTC."""
        return "unknown" if self.at == UNDATED else f"{self.at:%Y-%m-%d %H:%M:%S}"

    @property
    def line(self) -> str:
        """Return the letter on one line, for status pages."""
        what = self.task_id or f"a message of {self.num_bytes} bytes"
        return f"{self.when} {what}: {self.reason}"


@dataclass(frozen=True)
class Stored:
    """The bytes of a message or dead letter in a broker and, in a folder, the name of its file."""

    raw: bytes
    place: str = ""

    def id_in(self, service: str) -> str:
        """Return the id of a letter, a hash of service and stored bytes. Equal letters have equal ids."""
        return hashlib.sha256(f"{service}\n{len(self.raw)}\n".encode() + self.raw).hexdigest()[:32]


@dataclass(frozen=True)
class StoredLetter:
    """A dead letter together with its stored form."""

    letter: DeadLetter
    stored: Stored


def read_letter(stored: Stored, service: str) -> DeadLetter:
    """Parse a dead letter. Bytes that cannot be parsed are wrapped as a letter, so that a reader never fails."""
    fields = {"service": service, "letter_id": stored.id_in(service)}
    try:
        return DeadLetter.model_validate_json(stored.raw).model_copy(update=fields)
    except (ValidationError, RecursionError):
        misunderstood = Misunderstood.of(f"no dead letter of ours: {shown(stored.raw[:40])}", stored.raw)
    return DeadLetter.of_message(service, misunderstood).model_copy(update=fields | {"at": UNDATED})


def task_of(letter: DeadLetter) -> Task:
    """Return the task of a letter, ready to be sent again.

    Raise InputError with the reason if it cannot be sent again.
    """
    if letter.task is None:
        raise InputError("it is a message that is not a task")
    task = parse_task(letter.task)
    if isinstance(message := understand(Message(task=task.model_dump(mode="json")).encode()), Misunderstood):
        raise InputError(message.reason)
    return task
