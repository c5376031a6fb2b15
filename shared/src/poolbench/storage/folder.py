"""Objects as files below one folder, for one machine or a shared file system."""

import contextlib
import errno
import math
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from poolbench.errors import AccessDeniedError, BlockedPathError, ConfigError, NotFoundError, StoreError, shown
from poolbench.storage.base import ObjectInfo

_TEMPORARY = ".partial-"
#: Bytes of one part of a path: what file systems take.
_MAX_PART = 255
_NO_FILE = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: A driver that sets a damaged artifact aside moves its folder, perhaps while another process writes into it.
_WRITE_TRIES = 3
#: Seconds for which the clock of the file system is not read again.
_CLOCK_S = 60.0
_FULL_HINT = "free space (`poolbench-driver gc --delete` helps), then run the same command again"


class FolderStore:
    """ObjectStore over a folder. A write goes to a temporary file first and is linked into place."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        self.uri = str(self.root)
        self._looked_at_s = self._ahead_s = -math.inf  # when the file system's clock was read, and how far it is ahead
        with _store_errors(self.uri):
            self.root.mkdir(parents=True, exist_ok=True)

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        target = self._file(path)
        with _store_errors(path):
            for _ in range(_WRITE_TRIES - 1):
                with contextlib.suppress(FileNotFoundError):
                    return _write(target, data, if_absent=if_absent)
            return _write(target, data, if_absent=if_absent)

    def get(self, path: str) -> bytes:
        with _store_errors(path):
            data = _read_regular(self._file(path))
        if data is None:
            raise NotFoundError(f"no object {path!r} in {self.uri}")
        return data

    def exists(self, path: str) -> bool:
        with _store_errors(path):
            file = self._file(path)
            return file.is_file() and not file.is_symlink()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        base = self._file(prefix.rpartition("/")[0]) if "/" in prefix else self.root
        infos = []
        for folder, _, names in os.walk(base, onerror=_unless_missing):
            for name in names:
                file = Path(folder, name)
                path = file.relative_to(self.root).as_posix()
                if path.startswith(prefix) and not name.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):  # deleted while we list
                        status = file.lstat()
                        if stat.S_ISREG(status.st_mode):
                            infos.append(ObjectInfo(path, status.st_size, status.st_mtime))
        yield from sorted(infos, key=lambda info: info.path)

    def delete(self, path: str) -> None:
        with _store_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._file(path).unlink()

    def move(self, source: str, target: str) -> bool:
        origin, place = self._file(source), self._file(target)
        with _store_errors(source):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                origin.rename(place)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def blocked(self, path: str) -> str:
        file = self._file(path)
        with _store_errors(path):
            for place in reversed([file, *(above for above in file.parents if above.is_relative_to(self.root))]):
                fits = place.is_dir() if place != file else place.is_file() and not place.is_symlink()
                if not fits and os.path.lexists(place):
                    return place.relative_to(self.root).as_posix()
        return ""

    def now_s(self, path: str = "") -> float:
        # Counted from the last look by the monotonic clock, because the clock of this machine may be set meanwhile.
        if time.monotonic() - self._looked_at_s > _CLOCK_S:
            dated_s = self._file_system_s()
            self._looked_at_s = time.monotonic()
            self._ahead_s = dated_s - self._looked_at_s
        return time.monotonic() + self._ahead_s

    def _file_system_s(self) -> float:
        """Return the time by the clock of the file system, in seconds since the epoch.

        A shared file system has the clock of its server. If this process may not write, use the clock of this machine.
        """
        if not os.access(self.root, os.W_OK):
            return time.time()
        with _store_errors(self.uri), tempfile.TemporaryFile(dir=self.root) as file:
            file.write(b"\0")
            file.flush()
            return os.fstat(file.fileno()).st_mtime

    def _file(self, path: str) -> Path:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise ConfigError(f"object path {shown(path)} must be relative and without '..' or NUL")
        try:
            longest = max((len(part.encode()) for part in parts), default=0)
        except UnicodeEncodeError:
            raise ConfigError(f"object path {shown(path)} must be valid Unicode") from None
        if longest > _MAX_PART:
            raise ConfigError(f"object path {shown(path)} has a part of {longest} bytes; the limit is {_MAX_PART}")
        return self.root.joinpath(*parts)


def _write(target: Path, data: bytes, *, if_absent: bool) -> bool:
    """Write a file atomically. Return False if `if_absent` is set and the file already exists."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise _blocked(target.parent) from None
    handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return _link_once(name, target) if if_absent else _replace(name, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _read_regular(file: Path) -> bytes | None:
    """Return the bytes of a regular file. For a missing file or anything else, such as a pipe, return None."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as opened:
        return opened.read()


def _replace(name: str, target: Path) -> bool:
    try:
        os.replace(name, target)
    except IsADirectoryError:
        raise _blocked(target) from None
    return True


def _blocked(path: Path) -> BlockedPathError:
    return BlockedPathError(f"object store: {path} is in the way: it is not a file or folder of the store; move it")


def _link_once(name: str, target: Path) -> bool:
    """Link a file to `target`. Return False if another writer was first.

    A hard link fails if the name is taken, so that exactly one writer succeeds across processes.
    """
    try:
        os.link(name, target)
    except FileExistsError:
        if not stat.S_ISREG(target.lstat().st_mode):
            raise _blocked(target) from None
        # NFS may make the link, lose its response and try again: then the link is ours (link(2), "BUGS").
        return os.path.samefile(name, target)
    return True


def _unless_missing(error: OSError) -> None:
    """Ignore the error of a missing folder, which lists as empty.

    Raise AccessDeniedError or StoreError for any other error, so that an unreadable folder does not list as empty.
    """
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        kind = AccessDeniedError if isinstance(error, PermissionError) else StoreError
        raise kind(f"object store: {error.filename}: {error.strerror}") from error


@contextlib.contextmanager
def _store_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = f"; {_FULL_HINT}" if error.errno in _FULL else ""
        kind = AccessDeniedError if isinstance(error, PermissionError) else StoreError
        raise kind(f"object store: {what}: {error.strerror or error}{hint}") from error
