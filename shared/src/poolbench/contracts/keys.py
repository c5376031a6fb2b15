"""Derivation keys: an artifact is named by how it is made, never by its bytes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEYS_VERSION = 1
RESTRICTED_PREFIX = "restricted."


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces. Raise ValueError for NaN or infinity, TypeError for no JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any, length: int = 32) -> str:
    """Return the first `length` hex digits of the SHA-256 of `value` as canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def derive_key(
    step: str, step_version: int, params: Mapping[str, Any], inputs: Mapping[str, str], *, restricted: bool = False
) -> str:
    """Return the key of an artifact: a hash of step, step version, relevant parameters and input keys.

    Bytes and commits are left out: generation on GPUs is not bitwise repeatable, and a refactoring must not invalidate
    results. A change of meaning is a new `step_version`.

    Args:
        step: Name of the step, e.g. `extractor.vectors`; becomes the readable part of the key.
        step_version: Version of the step's meaning.
        params: JSON parameters that change the result (not batch sizes or devices).
        inputs: Artifact keys by role.
        restricted: Whether the artifact belongs to a sensitive concept. If an input is restricted, the new artifact is
            restricted too.
    """
    restricted = restricted or any(is_restricted(key) for key in inputs.values())
    identity = {
        "keys_version": KEYS_VERSION,
        "step": step,
        "step_version": step_version,
        "params": dict(params),
        "inputs": dict(inputs),
    }
    return f"{RESTRICTED_PREFIX if restricted else ''}{step}.{digest(identity)}"


def is_restricted(key: str) -> bool:
    """Return whether the key names an artifact of a sensitive concept."""
    return key.startswith(RESTRICTED_PREFIX)
