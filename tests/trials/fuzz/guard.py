"""What a reader must not do with a hostile file: run code, open files elsewhere, connect, or name a secret."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

#: Settings that a process of the cluster has, with values that no message may hold.
SECRETS = {
    "POOLBENCH_TOKEN": "canary-token-5b1f",
    "POOLBENCH_TOKEN_NEXT": "canary-next-77aa",
    "POOLBENCH_S3_ACCESS_KEY": "canary-access-09cd",
    "POOLBENCH_S3_SECRET_KEY": "canary-secret-e3e3",
}
#: Content of a file outside of every case's folder.
CANARY = "canary-of-another-folder"
_FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pty.spawn"),
    *("pickle.find_class", "socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "os.startfile"),
    *("os.chmod", "os.chown", "os.kill", "os.putenv", "code.__new__", "marshal.loads", "shutil.rmtree"),
)
_MOVES = ("os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MAX_MESSAGE = 20_000


class Guard:
    """An audit hook that notes what is forbidden while a case is read. It cannot be removed from a process."""

    def __init__(self, folder: Path) -> None:
        self._inside = str(folder.resolve())
        self._armed = False
        self._seen: list[str] = []
        self._log = _Log()
        logging.getLogger().addHandler(self._log)
        logging.getLogger("poolbench").setLevel(logging.INFO)
        sys.dont_write_bytecode = True  # a module that a case is the first to import would be written by Python itself
        sys.addaudithook(self._hook)

    def start(self) -> None:
        """Watch from now on."""
        self._seen.clear()
        self._log.lines.clear()
        self._armed = True

    def stop(self, said: str) -> list[str]:
        """Stop watching. Return what was wrong, also with what was said to the user and the log."""
        self._armed = False
        text = "\n".join((said, *self._log.lines))
        secrets = [name for name, value in SECRETS.items() if value in text]
        found = [*dict.fromkeys(self._seen), *(f"the value of {name} in a message" for name in secrets)]
        if CANARY in text:
            found.append("the content of a file of another folder in a message")
        if len(said) > _MAX_MESSAGE:
            found.append(f"a message of {len(said)} characters")
        return found

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._armed:
            return
        if event in _FORBIDDEN and not _is_library(event, arguments):
            self._seen.append(f"{event} {arguments!r:.200}")
        elif event in _MOVES:
            self._seen += [f"{event} {part!r:.200}" for part in arguments if self._is_outside(part)]
        elif event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & _WRITES
            if self._is_outside(path) and (writes or _is_foreign(path)):
                self._seen.append(f"open {path!r:.200} {mode} {flags}")

    def _is_outside(self, path: object) -> bool:
        if not isinstance(path, str | bytes):
            return False  # a descriptor that was opened before
        found = os.fsdecode(path)
        inside = os.path.realpath(found).startswith(f"{self._inside}{os.sep}")
        return not inside and found not in ("/dev/null", self._inside)


class _Log(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def _is_foreign(path: object) -> bool:
    """Return whether a file that is read is none of Python's and its libraries'."""
    found = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes) else ""
    return found.startswith("/etc/passwd") or "outside" in found


def _is_library(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether an event is the import of a module, which unmarshals its code."""
    return event in ("marshal.loads", "code.__new__") and _importing()


def _importing() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
