"""HTML elements as functions. What is not an element is text, and is escaped."""

from collections.abc import Iterable
from html import escape
from typing import Any

_EMPTY = frozenset(("br", "input", "link", "meta"))

#: What an element may contain: elements, texts, numbers, nothing, and any of these in a row.
Content = Any


class Html(str):
    """Markup, which is written without escaping."""

    __slots__ = ()


def element(name: str, /, *contents: Content, **attributes: Any) -> Html:
    """Return an element.

    Args:
        name: Name of the element, such as `td`.
        contents: Contents of the element. None and False are left out.
        attributes: Attributes by name, with `_` for `-` and `class_` for `class`. None and False are left out, and True
            has no value.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{written}>" if name in _EMPTY else f"<{name}{written}>{joined(contents)}</{name}>")


def joined(contents: Content) -> Html:
    """Concatenate contents. Text that is not markup is escaped."""
    if isinstance(contents, Html):
        return contents
    if contents is None or contents is False:
        return Html()
    if isinstance(contents, Iterable) and not isinstance(contents, str):
        return Html("".join(map(joined, contents)))
    return Html(escape(str(contents)))
