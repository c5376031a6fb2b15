"""JSON records with a checksum of their own, which detects a changed field."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

CHECKSUM = "checksum"


def seal(content: str | bytes) -> bytes:
    """Return a JSON object with the checksum of all its fields added."""
    fields = from_json(content)
    return json.dumps({**fields, CHECKSUM: _checksum(fields)}).encode()


def unseal(data: bytes, *, required: bool = False) -> dict[str, Any]:
    """Return the fields of a sealed JSON object, without the checksum.

    Args:
        data: Bytes of the object.
        required: Refuse an object without checksum. Earlier versions wrote none.

    Raises:
        ValueError: The bytes are no JSON object, or the checksum is missing or wrong.
    """
    fields = from_json(data)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    checksum = fields.pop(CHECKSUM, None)
    if checksum is None and not required:
        return fields
    if checksum != _checksum(fields):
        raise ValueError("its checksum is missing" if checksum is None else "it does not match its checksum")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
