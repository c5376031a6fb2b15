"""Objects as files below one folder, for one machine or a shared file system."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from poolbench.errors import AccessDeniedError, ConfigError, NotFoundError, StoreError, shown
from poolbench.storage.base import ObjectInfo

_TEMPORARY = ".partial-"
#: Bytes of one part of a path: what file systems take.
_MAX_PART = 255
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_HINT = "free space (`poolbench-driver gc --delete` helps), then run the same command again"


class FolderStore:
    """ObjectStore over a folder. A write goes to a temporary file first and is linked into place."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        self.uri = str(self.root)
        with _store_errors(self.uri):
            self.root.mkdir(parents=True, exist_ok=True)

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        target = self._file(path)
        with _store_errors(path):
            target.parent.mkdir(parents=True, exist_ok=True)
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

    def get(self, path: str) -> bytes:
        with _store_errors(path):
            try:
                return self._file(path).read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise NotFoundError(f"no object {path!r} in {self.uri}") from None

    def exists(self, path: str) -> bool:
        with _store_errors(path):
            return self._file(path).is_file()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        base = self._file(prefix.rpartition("/")[0]) if "/" in prefix else self.root
        found = []
        for folder, _, names in os.walk(base, onerror=_unless_missing):
            for name in names:
                file = Path(folder, name)
                path = file.relative_to(self.root).as_posix()
                if path.startswith(prefix) and not name.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):  # deleted while we list
                        status = file.stat()
                        found.append(ObjectInfo(path, status.st_size, status.st_mtime))
        yield from sorted(found, key=lambda info: info.path)

    def delete(self, path: str) -> None:
        with _store_errors(path), contextlib.suppress(FileNotFoundError):
            self._file(path).unlink()

    def make_private(self, name: str) -> None:
        """Creates a folder of the store that its owner alone may enter; one that is there is closed to others.

        Raises:
            AccessDeniedError: Another user's folder has this name.
        """
        folder = self._file(name)
        with _store_errors(name):
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.stat().st_mode & 0o077:
                folder.chmod(0o700)

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


def _replace(name: str, target: Path) -> bool:
    os.replace(name, target)
    return True


def _link_once(name: str, target: Path) -> bool:
    """A hard link fails when the name is taken, so exactly one writer wins even across processes."""
    try:
        os.link(name, target)
    except FileExistsError:
        return False
    return True


def _unless_missing(error: OSError) -> None:
    """A folder that is not there lists as empty; one that cannot be read must not."""
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
