"""A folder as message broker: one file per message, written under another name first. Who removes it has it."""

import logging
import os
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

from poolbench.queue.affinity import Affinity
from poolbench.queue.envelope import MAX_PAUSE_S, Message, Misunderstood, service_of, understand
from poolbench.queue.letters import MOST_KEPT, DeadLetter, Stored

SCHEME = "poolbenchfolder"
POLL_INTERVAL_S = 0.1

_PAUSE = re.compile(r"-after(\d{1,9})ms$")
_LOG = logging.getLogger("poolbench.queue")
_STAMP = re.compile(r"([0-9]{20})-")


def transport_options(root: Path) -> dict[str, Any]:
    """Create the folders of a broker in `root`, and return its transport options."""
    spool = FolderSpool(root)
    for folder in (spool.messages, spool.dead):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {
        "polling_interval": POLL_INTERVAL_S,
        "data_folder_in": str(spool.messages),
        "data_folder_out": str(spool.messages),
        "root": str(root),
    }


class FolderSpool:
    """The messages and dead letters of all queues, as files of a folder."""

    def __init__(self, root: Path) -> None:
        self.messages, self.dead = root / "messages", root / "dead"

    def count(self, queue: str, limit: int | None = None) -> int:
        with os.scandir(self.messages) as entries:
            return sum(1 for _ in islice((entry for entry in entries if _queue_of(entry.name) == queue), limit))

    def waiting(self, queue: str) -> Iterator[bytes]:
        contents = (_read(path) for path in _files(self.messages, queue))
        return (raw for raw in contents if raw is not None)

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
        for path in _files(self.dead, queue)[-limit if limit else 0 :]:
            if (raw := _read(path)) is not None:
                yield Stored(raw, path.name)

    def has_dead(self, queue: str, stored: Stored) -> bool:
        return (self.dead / stored.place).exists()

    def remove_dead(self, queue: str, stored: Stored) -> bool:
        try:
            (self.dead / stored.place).unlink()
        except FileNotFoundError:
            return False
        return True

    def clear(self, queue: str) -> int:
        paths = _files(self.messages, queue) + _files(self.dead, queue)
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def bury_message(self, path: Path, letter: DeadLetter) -> None:
        """Write the dead letter of a message.

        The name of the letter derives from the name of the message, so that two consumers write one letter.
        """
        stem, _, rest = path.name.partition(".")
        _place(self.dead / f"{stem}-letter.{rest}", letter.encode())
        self._forget_oldest(_queue_of(path.name))

    def _forget_oldest(self, queue: str | None) -> None:
        for path in _files(self.dead, queue)[:-MOST_KEPT]:
            path.unlink(missing_ok=True)

    def take(self, path: Path) -> bool:
        """Remove a message from the queue. Return False if another consumer has already removed it."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def paths(self, queue: str) -> list[Path]:
        """Return the files of the waiting messages of a queue, oldest first."""
        return _files(self.messages, queue)


def _files(folder: Path, queue: str | None) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder)) if _queue_of(name) == queue]


def _read(path: Path) -> bytes | None:
    """Return the bytes of a message, or None if another process has removed its file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _queue_of(filename: str) -> str | None:
    return filename.partition(".")[2].removesuffix(".msg") if filename.endswith(".msg") else None


def _write(folder: Path, queue: str, raw: bytes, pause_s: float = 0.0) -> None:
    pause = f"-after{round(pause_s * 1000)}ms" if pause_s else ""
    _place(folder / f"{time.time_ns():020d}-{uuid.uuid4().hex}{pause}.{queue}.msg", raw)


def _place(path: Path, raw: bytes) -> None:
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    partial.write_bytes(raw)
    os.replace(partial, path)


def _task_of(path: Path) -> dict[str, Any] | None:
    message = understand(_read(path) or b"")
    return message.task if isinstance(message, Message) else None


class Channel(filesystem.Channel):
    """Kombu's folder channel with atomic writes and reads, which delivers only messages that can be parsed.

    The stock channel creates a message under its final name before filling it. A consumer may therefore take an empty
    file and stop. It also stops on any other file that is not JSON.
    """

    supports_fanout = False  # no file of bindings to read; a queue is addressed by its name

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._spool = FolderSpool(Path(self.transport_options["root"]))
        self._stuck: set[Path] = set()
        self._found_s: dict[Path, float] = {}  # when a message that pauses was found, by the monotonic clock

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        _write(self._spool.messages, queue, dumps(payload).encode(), payload["headers"].get("pause_s") or 0.0)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        paths = self._spool.paths(queue)
        self._found_s = {path: found_s for path, found_s in self._found_s.items() if path in paths}
        paths = [path for path in paths if path not in self._stuck and not self._pauses(path)]
        affinity: Affinity | None = self.transport_options.get("affinity")
        for path in paths if affinity is None else affinity.preferred(paths, _task_of):
            if message := self._take(queue, path):
                return replace(message, pause_s=0.0).envelope(queue)
        raise Empty

    def _pauses(self, path: Path) -> bool:
        """Return whether the pause of a message is not over yet.

        Until then the message stays in the folder, so that a killed consumer cannot lose it.
        """
        match = _PAUSE.search(path.name.partition(".")[0])  # part of the name, so that nothing need be read
        pause_s = int(match[1]) / 1000 if match else 0.0
        if not 0 < pause_s <= MAX_PAUSE_S:
            return False
        return time.monotonic() - self._found_s.setdefault(path, time.monotonic()) < pause_s

    def _take(self, queue: str, path: Path) -> Message | None:
        """Take a message out of the queue. Return None if it cannot be parsed, or if another consumer was faster.

        The message stays in the queue until it is parsed or its dead letter is written, because a consumer may be
        killed at any time.
        """
        if (raw := _read(path)) is None:
            return None
        message = understand(raw)
        if isinstance(message, Misunderstood) and not self._bury(queue, path, message):
            self._stuck.add(path)
            return None
        is_ours = self._spool.take(path)
        return message if is_ours and isinstance(message, Message) else None

    def _bury(self, queue: str, path: Path, misunderstood: Misunderstood) -> bool:
        """Write the dead letter of a message. Return False if writing fails, e.g. on a full disk.

        The message must then stay in the queue.
        """
        service = service_of(queue)
        _LOG.error("dead letter of %s: %s", service, misunderstood.reason)
        try:
            self._spool.bury_message(path, DeadLetter.of_message(service, misunderstood))
        except OSError as error:
            _LOG.error("the dead letter of %s cannot be written: %s", service, error)
            return False
        return True


class Transport(filesystem.Transport):
    """Kombu's folder transport, with the channel that writes and reads atomically."""

    Channel = Channel


TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
