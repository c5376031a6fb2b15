"""Values of requests as messages quote them."""

from __future__ import annotations

from typing import Any

_MAX_CHARS = 60


def shortened(value: Any) -> str:
    """A value in ASCII, cut to a length that a message can hold; containers are shown by kind and size."""
    if isinstance(value, (list, tuple, dict, bytes)) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str):
        value = value[: _MAX_CHARS + 1]
    text = ascii(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
