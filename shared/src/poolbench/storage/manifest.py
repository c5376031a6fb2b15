"""Manifests of artifacts: their content, sealed with a checksum, and where artifacts lie."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from poolbench.contracts.wire import ARTIFACTS_FOLDER, MANIFEST_FILE

CHECKSUM = "checksum"


def seal(content: str | bytes) -> bytes:
    """Return a JSON object with the checksum of all its fields added."""
    fields = from_json(content)
    return json.dumps({**fields, CHECKSUM: _checksum(fields)}).encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the fields of a sealed JSON object, without the checksum.

    Raise ValueError if the bytes are not a JSON object, or the checksum is wrong or missing.
    """
    fields = from_json(data)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    checksum = fields.pop(CHECKSUM, None)
    if checksum != _checksum(fields):
        raise ValueError("its checksum is missing" if checksum is None else "it does not match its checksum")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


MANIFEST_VERSION = 2


class OtherVersionError(ValueError):
    """Another version of PoolBench wrote a file."""


class FileEntry(BaseModel):
    """One payload file of an artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    num_bytes: int
    sha256: str


class Manifest(BaseModel):
    """What was committed under a key, by whom and how long it took."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = MANIFEST_VERSION
    key: str
    attempt: str
    files: dict[str, FileEntry]
    num_rows: int | None = None
    meta: dict[str, Any] = Field(default_factory=dict)  # what readers need to know: width, model ...
    producer: dict[str, Any] = Field(default_factory=dict)  # task, host, versions, timings
    created_at: str

    def to_bytes(self) -> bytes:
        """Return the manifest as stored, with its checksum."""
        return seal(self.model_dump_json())

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse the manifest of `key`. Raise ValueError if it is damaged, or belongs to another artifact."""
        manifest = cls.model_validate(unseal(data))
        if manifest.schema_version != MANIFEST_VERSION:
            raise OtherVersionError(
                f"its manifest has version {manifest.schema_version}, and this PoolBench reads {MANIFEST_VERSION}"
            )
        if manifest.key != key:
            raise ValueError(f"it is the manifest of {manifest.key[:80]}")
        if not all(entry.path.startswith(f"{folder_of(key)}/") for entry in manifest.files.values()):
            raise ValueError("it names a file outside of the artifact")
        return manifest


def folder_of(key: str) -> str:
    """Return the folder of an artifact in the store."""
    return f"{ARTIFACTS_FOLDER}/{key}"


def manifest_path(key: str) -> str:
    """Return the path of an artifact's manifest."""
    return f"{folder_of(key)}/{MANIFEST_FILE}"
