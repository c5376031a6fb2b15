"""How a URI becomes a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlparse

from poolbench.contracts.wire import RESTRICTED_FOLDER
from poolbench.errors import ConfigError
from poolbench.storage.base import ObjectStore
from poolbench.storage.folder import FolderStore
from poolbench.storage.guarded import GuardedStore

RESTRICTED_STORE = "POOLBENCH_RESTRICTED_STORE"
RESTRICTED_S3 = "POOLBENCH_RESTRICTED_S3_"
NO_ACCESS = "none"


def open_store(uri: str, restricted: str = "", environment: Mapping[str, str] | None = None) -> ObjectStore:
    """The store that ``uri`` names: a folder (``/data/store``, ``file:///data/store``) or ``s3://bucket/prefix``.

    S3 endpoint and credentials come from POOLBENCH_S3_ENDPOINT, POOLBENCH_S3_ACCESS_KEY and
    POOLBENCH_S3_SECRET_KEY: deployment facts, never part of a configuration file. What lies below ``restricted/``
    is reached by POOLBENCH_RESTRICTED_S3_ACCESS_KEY and _SECRET_KEY alone (endpoint and region are the ordinary
    ones unless given), or lies in a folder of mode 0700.

    Args:
        uri: Of the ordinary store.
        restricted: Store of what lies below ``restricted/``; ``none`` for no access. By default what
            POOLBENCH_RESTRICTED_STORE names, else ``uri`` itself.
        environment: Variables; by default those of the process.

    Raises:
        ConfigError: A URI or setting is wrong.
    """
    variables = os.environ if environment is None else environment
    place = restricted or variables.get(RESTRICTED_STORE) or uri
    opener, remedy = _restricted_opener(place, variables)
    return GuardedStore(_open(uri, variables), opener, remedy)


def _open(uri: str, variables: Mapping[str, str]) -> ObjectStore:
    if _scheme(uri) == "s3":
        from poolbench.storage.s3 import S3Store

        return S3Store.from_environment(uri, variables)
    return FolderStore(_folder(uri))


def _restricted_opener(uri: str, variables: Mapping[str, str]) -> tuple[partial[ObjectStore] | None, str]:
    """How the restricted store is opened, None for not at all; and what to do about a refusal."""
    if uri == NO_ACCESS:
        return None, f"{RESTRICTED_STORE} is {NO_ACCESS!r} here"
    if _scheme(uri) != "s3":
        folder = _folder(uri)
        return partial(_open_private, folder), f"{folder / RESTRICTED_FOLDER} is open to its owner only"
    keys = [f"{RESTRICTED_S3}{name}" for name in ("ACCESS_KEY", "SECRET_KEY")]
    if any(not variables.get(name) for name in keys):
        return None, f"set {' and '.join(keys)}: the ordinary credentials do not open them"
    if variables[keys[0]] == variables.get("POOLBENCH_S3_ACCESS_KEY"):
        raise ConfigError(f"{keys[0]} is the ordinary access key; restricted artifacts need credentials of their own")
    return partial(_open_s3, uri, variables), f"check {' and '.join(keys)}, and what the bucket's policy allows them"


def _open_private(root: Path) -> ObjectStore:
    """A folder store whose ``restricted/`` only its owner may enter."""
    store = FolderStore(root)
    store.make_private(RESTRICTED_FOLDER)
    return store


def _open_s3(uri: str, variables: Mapping[str, str]) -> ObjectStore:
    from poolbench.storage.s3 import S3Store

    own = {
        name.replace("_RESTRICTED", ""): value for name, value in variables.items() if name.startswith(RESTRICTED_S3)
    }
    ordinary = {name: value for name, value in variables.items() if name.startswith("POOLBENCH_S3_")}
    return S3Store.from_environment(uri, {**ordinary, **own}, existing=True)


def _scheme(uri: str) -> str:
    scheme = urlparse(uri).scheme
    if scheme not in ("", "file", "s3"):
        raise ConfigError(
            f"object store {uri!r}: unknown scheme {scheme!r}; use a folder, file:// or s3://bucket/prefix"
        )
    return scheme


def _folder(uri: str) -> Path:
    return Path(urlparse(uri).path if urlparse(uri).scheme else uri).expanduser().resolve()
