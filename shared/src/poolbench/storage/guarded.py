"""A store in two parts: artifacts of sensitive concepts need credentials of their own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from poolbench.contracts.wire import RESTRICTED_FOLDER
from poolbench.errors import AccessDeniedError, RestrictedError
from poolbench.storage.base import ObjectInfo, ObjectStore

Opener = Callable[[], ObjectStore]


class GuardedStore:
    """ObjectStore that takes every path below `restricted/` to another store, and no other path there.

    The restricted store is opened when it is first needed. If there is none, or it refuses the credentials,
    RestrictedError is raised: the ordinary store is never asked for a restricted path.
    """

    def __init__(self, ordinary: ObjectStore, restricted: Opener | None, remedy: str) -> None:
        """Combine two stores.

        Args:
            ordinary: Holds all else.
            restricted: Opens the store of restricted paths; None if this process has no access.
            remedy: What a refused operator can do.
        """
        self.uri = ordinary.uri
        self._ordinary, self._open, self._remedy = ordinary, restricted, remedy
        self._restricted: ObjectStore | None = None
        self._lock = threading.Lock()

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        with self._of(path) as store:
            return store.put(path, data, if_absent=if_absent)

    def get(self, path: str) -> bytes:
        with self._of(path) as store:
            return store.get(path)

    def exists(self, path: str) -> bool:
        with self._of(path) as store:
            return store.exists(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List objects below `restricted/` only if the prefix asks for them."""
        asked = is_below_restricted(prefix)
        with self._of(prefix) as store:
            found = list(store.list(prefix))
        yield from (info for info in found if asked or not is_below_restricted(info.path))

    def delete(self, path: str) -> None:
        with self._of(path) as store:
            store.delete(path)

    def move(self, source: str, target: str) -> bool:
        if is_below_restricted(source) != is_below_restricted(target):
            raise RestrictedError(f"{source} may not move to {target}: what is restricted stays below restricted/")
        with self._of(source) as store:
            return store.move(source, target)

    @contextmanager
    def _of(self, path: str) -> Iterator[ObjectStore]:
        """Yield the store of a path; a refusal by the restricted store raises RestrictedError."""
        if not is_below_restricted(path):
            yield self._ordinary
            return
        try:
            yield self._opened()
        except AccessDeniedError as error:
            raise RestrictedError(f"restricted artifacts: {error}; {self._remedy}") from None

    def _opened(self) -> ObjectStore:
        with self._lock:
            if self._restricted is None:
                if self._open is None:
                    raise RestrictedError(f"this process may not touch restricted artifacts; {self._remedy}")
                self._restricted = self._open()
            return self._restricted


def is_below_restricted(path: str) -> bool:
    """Return whether a path lies below `restricted/`, however it is spelled."""
    return PurePosixPath(path).parts[:1] == (RESTRICTED_FOLDER,)
