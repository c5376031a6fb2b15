"""Strict parsing of JSON, and safe quotes of hostile values in error messages."""

import json
import math
from typing import Any, NoReturn

from poolbench.errors import InputError, shown

MAX_DEPTH = 50
"""Levels of nested JSON. Our tasks have fewer than ten; a thousand overflow the stack of code that prints them."""


def parse_json(raw: bytes, what: str, kind: type) -> Any:
    """Parse a JSON object (dict) or list. Raise InputError if it is none, or holds values that break readers."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"the {what} is not UTF-8 ({error.reason} at byte {error.start}): {shown(raw[:40])}") from None
    except RecursionError:
        raise InputError(f"the {what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        reason = "it is empty" if not raw.strip() else str(error)
        raise InputError(f"the {what} is not JSON ({reason}): {shown(raw[:40])}") from None
    if not isinstance(value, kind):
        raise InputError(f"the {what} is not a JSON {'object' if kind is dict else 'list'}: {shown(value)}")
    _check_values(value, what)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _check_values(root: Any, what: str) -> None:
    """Raise InputError for what would break readers: depth, text without UTF-8, typed objects."""
    todo = [(root, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"the {what} is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            _check_text(value, what)
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"the {what} has a number that is too large")
        elif isinstance(value, list):
            todo += [(child, depth + 1) for child in value]
        elif isinstance(value, dict):
            if "__type__" in value:  # kombu would make an object of it
                raise InputError(f"the {what} asks for an object of type {shown(value['__type__'])}")
            for key, child in value.items():
                _check_text(key, what)
                todo.append((child, depth + 1))


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} has text with a lone surrogate: {shown(text)}") from None


def shown_text(text: str) -> str:
    """Return a text on one line, without anything that a terminal would act on."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
