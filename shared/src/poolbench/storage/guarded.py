"""Open a store by its URI. Artifacts of sensitive concepts need credentials of their own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse

from poolbench.contracts.wire import RESTRICTED_FOLDER
from poolbench.errors import AccessDeniedError, ConfigError, RestrictedError
from poolbench.settings import PlaceSettings, RestrictedS3Settings, S3Settings
from poolbench.storage.base import ObjectInfo, ObjectStore, require_conditional_writes
from poolbench.storage.folder import FolderStore
from poolbench.storage.measures import count_bytes, measured

Opener = Callable[[], ObjectStore]


class GuardedStore:
    """ObjectStore that takes every path below `restricted/` to another store, and no other path there.

    The restricted store is opened when it is first needed. If there is none, or it refuses the credentials,
    RestrictedError is raised: the ordinary store is never asked for a restricted path.
    """

    def __init__(self, ordinary: ObjectStore, restricted: Opener | None, remedy: str) -> None:
        """Combine two stores. `restricted` is None without access; `remedy` says what a refused operator can do."""
        self.uri = ordinary.uri
        self._ordinary, self._open, self._remedy = ordinary, restricted, remedy
        self._restricted: ObjectStore | None = None
        self._lock = threading.Lock()

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        with self._of(path, "put") as store:
            done = store.put(path, data, if_absent=if_absent)
        count_bytes(self.uri, "put", len(data))
        return done

    def get(self, path: str) -> bytes:
        with self._of(path, "get") as store:
            data = store.get(path)
        count_bytes(self.uri, "get", len(data))
        return data

    def exists(self, path: str) -> bool:
        with self._of(path, "exists") as store:
            return store.exists(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List objects below `restricted/` only if the prefix asks for them."""
        asked = is_below_restricted(prefix)
        with self._of(prefix, "list") as store:
            found = list(store.list(prefix))
        yield from (info for info in found if asked or not is_below_restricted(info.path))

    def delete(self, path: str) -> None:
        with self._of(path, "delete") as store:
            store.delete(path)

    def move(self, source: str, target: str) -> bool:
        if is_below_restricted(source) != is_below_restricted(target):
            raise RestrictedError(f"{source} may not move to {target}: what is restricted stays below restricted/")
        with self._of(source, "move") as store:
            return store.move(source, target)

    def blocked(self, path: str) -> str:
        with self._of(path) as store:
            return store.blocked(path)

    def now_s(self, path: str = "") -> float:
        with self._of(path) as store:
            return store.now_s(path)

    @contextmanager
    def _of(self, path: str, operation: str = "") -> Iterator[ObjectStore]:
        """Yield the store of a path; a refusal by the restricted store raises RestrictedError.

        The block is measured if it is a named operation.
        """
        if not is_below_restricted(path):
            with measured(self._ordinary.uri, operation):
                yield self._ordinary
            return
        try:
            store = self._opened()
            with measured(store.uri, operation):
                yield store
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


NO_ACCESS = "none"


def open_store(uri: str, restricted: str = "") -> ObjectStore:
    """Return the store that `uri` names: a folder (`/data/store`, `file:///data/store`) or `s3://bucket/prefix`.

    S3 endpoint and credentials come from the environment, never from a configuration file. What lies below
    `restricted/` needs credentials of its own (endpoint and region are the ordinary ones unless given), or lies in a
    folder of mode 0700. Its store is `restricted` (`none` for no access), else POOLBENCH_RESTRICTED_STORE, else `uri`.
    Raise ConfigError for a wrong URI or setting.
    """
    place = restricted or PlaceSettings.load().restricted_store or uri
    opener, remedy = _restricted_opener(place)
    return GuardedStore(_open(uri), opener, remedy)


def _open(uri: str) -> ObjectStore:
    if _scheme(uri) == "s3":
        from poolbench.storage.s3 import S3Store

        return S3Store(uri, S3Settings.load())
    return FolderStore(_folder(uri))


def _restricted_opener(uri: str) -> tuple[partial[ObjectStore] | None, str]:
    """Return how the restricted store is opened, None for no access; and the remedy after a refusal."""
    if uri == NO_ACCESS:
        return None, f"{PlaceSettings.variable('restricted_store')} is {NO_ACCESS!r} here"
    if _scheme(uri) != "s3":
        folder = _folder(uri)
        return partial(_open_private, folder), f"{folder / RESTRICTED_FOLDER} is open to its owner only"
    ordinary, own = S3Settings.load(), RestrictedS3Settings.load()
    keys = [own.variable(name) for name in ("access_key", "secret_key")]
    if own.credentials == "keys" and not (own.access_key and own.secret_key):
        return None, f"set {' and '.join(keys)}: the ordinary credentials do not open them"
    _require_own_credentials(ordinary, own)
    named = " and ".join(keys) if own.credentials == "keys" else own.variable("credentials")
    inherited = {name: getattr(own, name) or getattr(ordinary, name) for name in ("endpoint", "region", "deadline_s")}
    service = own.model_copy(update=inherited)
    return partial(_open_s3, uri, service), f"check {named}, and what the bucket's policy allows them"


def _require_own_credentials(ordinary: S3Settings, own: S3Settings) -> None:
    """Raise ConfigError if both stores would use the same credentials."""
    details = {"keys": ["access_key"], "file": ["credentials_file", "profile"]}
    given = ["credentials", *details.get(own.credentials, [])]
    if all(getattr(own, name) == getattr(ordinary, name) for name in given):
        raise ConfigError(
            f"{own.variable(given[-1])} gives the ordinary credentials; restricted artifacts need credentials of their "
            "own: other keys, another file or profile, or another source"
        )


def _open_private(root: Path) -> ObjectStore:
    """Return a folder store whose `restricted/` only its owner may enter."""
    store = FolderStore(root)
    store.make_private(RESTRICTED_FOLDER)
    return store


def _open_s3(uri: str, service: S3Settings) -> ObjectStore:
    from poolbench.storage.s3 import S3Store

    store = S3Store(uri, service, existing=True)
    require_conditional_writes(store, f"{RESTRICTED_FOLDER}/")
    return store


def _scheme(uri: str) -> str:
    scheme = urlparse(uri).scheme
    if scheme not in ("", "file", "s3"):
        raise ConfigError(
            f"object store {uri!r}: unknown scheme {scheme!r}; use a folder, file:// or s3://bucket/prefix"
        )
    return scheme


def folder_of_store(uri: str) -> Path | None:
    """Return the folder of a store that is one; None for S3, for no access and for an empty URI."""
    return None if uri in ("", NO_ACCESS) or _scheme(uri) == "s3" else _folder(uri)


def _folder(uri: str) -> Path:
    return Path(urlparse(uri).path if urlparse(uri).scheme else uri).expanduser().resolve()
