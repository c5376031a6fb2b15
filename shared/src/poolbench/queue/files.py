"""Read the file of a message. Anything may lie in its place: a reader neither waits for it nor follows it."""

import os
import stat
from pathlib import Path

from poolbench.queue.envelope import KEPT_BYTES, Misunderstood, too_large

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def read_file(path: Path, limit: int) -> bytes | Misunderstood | None:
    """Return the bytes of a message, or None if it is gone. Never wait, and follow no link."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            return Misunderstood(f"{_KINDS.get(stat.S_IFMT(mode), 'a device')}, not a file", readable=False)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            return too_large(file.read(KEPT_BYTES), size) if size > limit else file.read(limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Misunderstood(f"a file that cannot be read: {error.strerror}", readable=False)
