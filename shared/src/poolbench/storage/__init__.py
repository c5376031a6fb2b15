"""Object storage: one small protocol, a folder and an S3 implementation, and artifacts on top."""

from poolbench.storage.artifacts import Artifacts, Manifest
from poolbench.storage.base import ObjectInfo, ObjectStore
from poolbench.storage.open import open_store

__all__ = ["Artifacts", "Manifest", "ObjectInfo", "ObjectStore", "open_store"]
