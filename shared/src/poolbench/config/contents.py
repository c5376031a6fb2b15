"""Hashes of files, each of which is read once and not again until it changes."""

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from poolbench.contracts.keys import digest
from poolbench.settings import state_folder

#: Size, times of the last write and of the last change, and number of a file. `cp -p` and `rsync -t` set the time of
#: the last write to that of another file, but only the kernel sets that of the last change.
FileState = tuple[int, int, int, int]

_FOLDER, _LENGTH = "hashes", 64
#: File systems count time in steps, and a file that changes twice within one step keeps its times. A hash is kept only
#: if the file was left alone this long before.
_SETTLED_NS = 2_000_000_000


def file_state(file: Path) -> FileState:
    """Return the size, times and inode of a file, which change with its content. The file is not read."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def content_hash(file: Path) -> str:
    """Return the SHA-256 of a file.

    The hash is cached in this process and, if there is a state folder, in that folder for other processes.
    """
    state = file_state(file)
    if time.time_ns() - state[2] < _SETTLED_NS:
        return _hash(file)
    return _kept_hash(file.resolve(), state)


@lru_cache(maxsize=4096)
def _kept_hash(file: Path, state: FileState) -> str:
    cache = state_folder() / _FOLDER / digest([str(file), *state], 32)
    with suppress(OSError, ValueError):
        if len(sha256 := cache.read_text("ascii")) == _LENGTH:  # a machine that lost its power may leave an empty file
            return sha256
    sha256 = _hash(file)
    with suppress(OSError):  # no state folder, or one that this process may not write to: others read the file again
        cache.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, prefix=".", delete=False) as part:
            part.write(sha256)
        os.replace(part.name, cache)
    return sha256


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
