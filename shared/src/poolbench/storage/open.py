"""How a URI becomes a store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

from poolbench.errors import ConfigError
from poolbench.storage.base import ObjectStore


def open_store(uri: str) -> ObjectStore:
    """The store that ``uri`` names: a folder (``/data/store``, ``file:///data/store``) or ``s3://bucket/prefix``.

    S3 endpoint and credentials come from POOLBENCH_S3_ENDPOINT, POOLBENCH_S3_ACCESS_KEY and
    POOLBENCH_S3_SECRET_KEY: deployment facts, never part of a configuration file.
    """
    scheme = urlparse(uri).scheme
    if scheme in ("", "file"):
        from poolbench.storage.folder import FolderStore

        return FolderStore(Path(urlparse(uri).path if scheme else uri))
    if scheme == "s3":
        from poolbench.storage.s3 import S3Store

        return S3Store.from_environment(uri)
    raise ConfigError(f"object store {uri!r}: unknown scheme {scheme!r}; use a folder, file:// or s3://bucket/prefix")
