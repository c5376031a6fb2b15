"""A folder as message broker: one file per message, written under another name first. Who removes it has it."""

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from poolbench.queue.letters import MOST_KEPT, DeadLetter, Stored

#: Seconds between two looks at a folder without messages.
POLL_INTERVAL_S = 0.1

_STAMP = re.compile(r"([0-9]{20})-")


class FolderSpool:
    """The messages and dead letters of all queues, as files of a folder."""

    def __init__(self, root: Path) -> None:
        self.messages, self.dead = root / "messages", root / "dead"
        for folder in (self.messages, self.dead):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, queue: str, raw: bytes) -> None:
        _write(self.messages, queue, raw)

    def count(self, queue: str, limit: int | None = None) -> int:
        with os.scandir(self.messages) as entries:
            return sum(1 for _ in islice((entry for entry in entries if _queue_of(entry.name) == queue), limit))

    def wait(self, queue: str, seconds: float) -> None:
        time.sleep(min(POLL_INTERVAL_S, seconds))

    def next(self, queue: str, number: int) -> list[Stored]:
        return list(_read_all(_files(self.messages, queue)[:number]))

    def take(self, queue: str, stored: Stored) -> bool:
        return _removed(self.messages / stored.place)

    def bury_message(self, queue: str, stored: Stored, letter: DeadLetter) -> bool:
        stem, _, rest = stored.place.partition(".")
        # Named after the message, so that two consumers write one letter.
        _place(self.dead / f"{stem}-letter.{rest}", letter.encode())
        self._forget_oldest(queue)
        return self.take(queue, stored)

    def waiting(self, queue: str) -> Iterator[bytes]:
        return (stored.raw for stored in _read_all(_files(self.messages, queue)))

    def oldest(self, queue: str) -> float | None:
        """Return when the oldest message was written, in seconds since the epoch, or None without messages.

        The time is read from the name of the message's file.
        """
        stamps = (_STAMP.match(name) for name in os.listdir(self.messages) if _queue_of(name) == queue)
        return min((int(stamp[1]) / 1e9 for stamp in stamps if stamp), default=None)

    def bury(self, queue: str, letter: DeadLetter) -> None:
        _write(self.dead, queue, letter.encode())
        self._forget_oldest(queue)

    def count_dead(self, queue: str) -> int:
        return len(_files(self.dead, queue))

    def dead_letters(self, queue: str, limit: int | None) -> Iterator[Stored]:
        return _read_all(_files(self.dead, queue)[-limit if limit else 0 :])

    def has_dead(self, queue: str, stored: Stored) -> bool:
        return (self.dead / stored.place).exists()

    def remove_dead(self, queue: str, stored: Stored) -> bool:
        return _removed(self.dead / stored.place)

    def clear(self, queue: str) -> int:
        paths = _files(self.messages, queue) + _files(self.dead, queue)
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _forget_oldest(self, queue: str) -> None:
        for path in _files(self.dead, queue)[:-MOST_KEPT]:
            path.unlink(missing_ok=True)


def _files(folder: Path, queue: str) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder)) if _queue_of(name) == queue]


def _read_all(paths: list[Path]) -> Iterator[Stored]:
    """Yield the content of files, without files that another process has removed."""
    for path in paths:
        with suppress(FileNotFoundError):
            yield Stored(path.read_bytes(), path.name)


def _removed(path: Path) -> bool:
    """Remove a file. Return False if another process has already removed it."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _queue_of(filename: str) -> str | None:
    return filename.partition(".")[2].removesuffix(".msg") if filename.endswith(".msg") else None


def _write(folder: Path, queue: str, raw: bytes) -> None:
    _place(folder / f"{time.time_ns():020d}-{uuid.uuid4().hex}.{queue}.msg", raw)


def _place(path: Path, raw: bytes) -> None:
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    partial.write_bytes(raw)
    os.replace(partial, path)
