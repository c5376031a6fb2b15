"""Dead letters as operators use them: select, send again, drop.

A lease lets one command at a time work on a letter. A letter is removed only after its task was sent, so a command that
is interrupted loses nothing. If it is repeated, it finds the task waiting or in work, and does not send it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES, cancel_path, failure_path
from poolbench.errors import ConfigError, InputError, NotFoundError, UnknownNameError, shown
from poolbench.queue.letters import UNDATED, DeadLetter, StoredLetter, task_of
from poolbench.queue.messages import shown_text
from poolbench.storage import Artifacts

if TYPE_CHECKING:
    from poolbench.queue import LeaseStore, TaskQueue
    from poolbench_driver.cluster.services import Services

_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MAX_WHY = 300


class LetterOutcome(StrEnum):
    """The outcome of retrying or dropping one dead letter."""

    SENT = "sent again"
    WAITING = "not sent, because its task waits or is in work; the letter is removed"
    DROPPED = "dropped"
    GONE = "gone: another command has removed it"
    HELD = "left alone: another command is working on it; try again in 15 s"
    NO_TASK = "cannot be sent again"


@dataclass(frozen=True)
class Report:
    """The outcome for one dead letter, and its reason."""

    letter: DeadLetter
    verdict: LetterOutcome
    why: str = ""


@dataclass(frozen=True)
class LetterFilter:
    """Selects the dead letters of a command. None selects all."""

    service: str | None = None
    kind: str | None = None
    since: datetime | None = None

    def __post_init__(self) -> None:
        if self.service is not None and self.service not in SERVICES:
            raise UnknownNameError("service", self.service, SERVICES)

    def __contains__(self, letter: DeadLetter) -> bool:
        return (self.kind is None or letter.kind == self.kind) and (self.since is None or letter.at >= self.since)

    def has_row(self, row: dict[str, Any]) -> bool:
        """Return whether the letter of a row, as the pooler lists it, is selected."""
        at = UNDATED if row["at"] is None else datetime.fromisoformat(row["at"])
        fits = self.service in (None, row["service"]) and self.kind in (None, row["kind"])
        return fits and (self.since is None or at >= self.since)


class DeadLetters:
    """The dead letters of all services on one cluster."""

    def __init__(self, queue: TaskQueue, artifacts: Artifacts, leases: LeaseStore) -> None:
        self.queue, self.artifacts, self.leases = queue, artifacts, leases

    def select(self, wanted: LetterFilter) -> list[StoredLetter]:
        """Return the letters of a selection, by service, oldest first."""
        services = SERVICES if wanted.service is None else (wanted.service,)
        letters = (letter for service in services for letter in self.queue.stored_letters(service))
        return [letter for letter in letters if letter.letter in wanted]

    def find(self, names: Sequence[str]) -> list[StoredLetter]:
        """Return the letters that ids, or beginnings of ids, name. Equal letters have one id and are all returned.

        Raises:
            NotFoundError: A name is not a beginning of an id.
            ConfigError: A name is the beginning of several ids.
        """
        letters = self.select(LetterFilter())
        letters_by_id: dict[str, list[StoredLetter]] = {}
        for name in names:
            letter_id = _meant(name, {letter.letter.letter_id for letter in letters})
            letters_by_id[letter_id] = [letter for letter in letters if letter.letter.letter_id == letter_id]
        return [letter for same in letters_by_id.values() for letter in same]

    def rows(self, wanted: LetterFilter) -> list[dict[str, Any]]:
        """Return the letters of a selection as lists show them."""
        return [letter.letter.row() for letter in self.select(wanted)]

    def details(self, name: str) -> dict[str, Any]:
        """Return the letter that an id, or the beginning of an id, names. The errors are those of `find`."""
        return self.find([name])[0].letter.details()

    def retry(self, chosen: Iterable[StoredLetter]) -> Iterator[Report]:
        """Send the tasks of letters to their queues again, each task once. Yield a report per letter."""
        by_task: dict[str, list[tuple[StoredLetter, Task]]] = {}
        for letter in chosen:
            try:
                task = _sendable(letter.letter)
            except InputError as error:
                yield Report(letter.letter, LetterOutcome.NO_TASK, shown_text(str(error))[:_MAX_WHY])
            else:
                by_task.setdefault(task.task_id, []).append((letter, task))
        for task_id, same in by_task.items():
            task = same[-1][1]
            yield from self._alone(task_id, [letter for letter, _ in same], partial(self._send, task))

    def drop(self, chosen: Iterable[StoredLetter]) -> Iterator[Report]:
        """Remove letters. Yield a report per letter."""
        for letter in chosen:
            yield from self._alone(
                letter.letter.task_id or letter.letter.letter_id, [letter], lambda: LetterOutcome.DROPPED
            )

    def _alone(self, name: str, same: list[StoredLetter], act: Callable[[], LetterOutcome]) -> Iterator[Report]:
        """Act on the letters that still exist, then remove them. A lease keeps other commands from these letters."""
        lease = self.leases.acquire(f"dead-letter/{name}")
        if lease is None:
            yield from (Report(letter.letter, LetterOutcome.HELD) for letter in same)
            return
        with lease:
            present = [letter for letter in same if self.queue.has_letter(letter)]
            verdict = act() if present else LetterOutcome.GONE
            removed = [letter in present and self.queue.remove_letter(letter) for letter in same]
        for letter, gone in zip(same, removed, strict=True):
            yield Report(letter.letter, verdict if gone else LetterOutcome.GONE)

    def _send(self, task: Task) -> LetterOutcome:
        """Send a task as the driver's loop does, unless the task waits or is in work."""
        self.artifacts.store.delete(failure_path(task.task_id))
        self.artifacts.store.delete(cancel_path(task.task_id))
        if task.task_id in self.queue.waiting(task.service) or self.leases.alive(task.task_id):
            return LetterOutcome.WAITING
        self.queue.send(task)
        return LetterOutcome.SENT


class ListedLetters:
    """The dead letters of a cluster that is known by its HTTP address. Sending and dropping need its queue."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def rows(self, wanted: LetterFilter) -> list[dict[str, Any]]:
        """Return the letters of a selection as lists show them."""
        return [row for row in self._services.get("pooler", "dead_letters")["dead_letters"] if wanted.has_row(row)]

    def details(self, name: str) -> dict[str, Any]:
        """Return the letter that an id, or the beginning of an id, names. Errors are those of `DeadLetters.find`."""
        letter_id = _meant(name, {row["id"] for row in self.rows(LetterFilter())})
        return self._services.get("pooler", f"dead_letters/{letter_id}")


def open_letters() -> DeadLetters:
    """Return the dead letters of the cluster. Raise ConfigError if its queue or its store is not known."""
    from poolbench_driver.cluster.session import open_session

    session = open_session()
    return DeadLetters(session.queue, session.artifacts, session.leases)


def listed_letters(services: Services) -> DeadLetters | ListedLetters:
    """Return the dead letters for reading, which the address of the services is enough for."""
    is_open = services.settings.broker_url and services.settings.store_uri
    return open_letters() if is_open else ListedLetters(services)


def when(at: str | None) -> str:
    """Return the time of a letter for readers, in UTC."""
    return "unknown" if at is None else f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S}"


def read_since(text: str | None) -> datetime | None:
    """Return the time that `--since` names: an age such as 90m, or a time in ISO 8601, in UTC by default."""
    if text is None:
        return None
    now = datetime.now(UTC)
    if age := _AGE.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time
    except ValueError:
        what = "use an age such as 90m, 36h or 7d, or a time such as 2026-01-31T12:00"
        raise ConfigError(f"--since {shown(text)}: {what}") from None


def _meant(name: str, ids: set[str]) -> str:
    """Return the one of the ids that begins with a name."""
    matches = {letter_id for letter_id in ids if name and letter_id.startswith(name)}
    if not matches:
        hint = "`poolbench-driver dead-letters ls` lists them"
        raise NotFoundError(f"no dead letter has an id that begins with {shown(name)}; {hint}")
    if len(matches) > 1:
        few = ", ".join(sorted(matches)[:5])
        raise ConfigError(f"{len(matches)} dead letters have ids that begin with {shown(name)}: {few}; give more")
    return matches.pop()


def _sendable(letter: DeadLetter) -> Task:
    """Return the task of a letter. Raise InputError if no service does tasks of this kind."""
    task = task_of(letter)
    if task.service not in SERVICES:
        raise InputError(f"no service does tasks of the kind {shown(task.kind)}")
    return task
