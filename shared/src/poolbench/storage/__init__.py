"""Object storage: one small protocol, a folder and an S3 implementation, and artifacts on top."""

from poolbench.storage.artifacts import Artifacts, Manifest
from poolbench.storage.base import ObjectInfo, older_than, require_conditional_writes, store_id
from poolbench.storage.opening import open_store
