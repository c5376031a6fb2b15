"""Lists that a table holds as Python literals, read without evaluating anything."""

from __future__ import annotations

import ast
import re
from typing import Any

from poolbench.errors import CorpusError, shown

MAX_LITERAL = 200_000
"""Longest literal, in characters."""
_MAX_DEPTH = 4
# Strings, numbers, brackets and commas. Names, calls, operators, bytes and formatted strings match nothing here, so
# what `ast.literal_eval` receives has no deep tree and no long number.
_TOKEN = re.compile(r"""\s+|'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+"|-?[0-9]{1,9}(?![0-9\w.])|[\[\](),]""", re.DOTALL)
_OPEN, _CLOSE = "[(", "])"


def read_list(text: str, where: str) -> list[Any]:
    """Return the list, or tuple, that a literal stands for; its elements are strings, integers, lists and tuples.

    Raises:
        CorpusError: With `where`: anything else, more than `MAX_LITERAL` characters, or too many levels.
    """
    if len(text) > MAX_LITERAL:
        raise CorpusError(f"{where}: a list of {len(text):,} characters; at most {MAX_LITERAL:,} are read")
    _require_tokens(text, where)
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise CorpusError(f"{where}: {shown(text)} is not a list of strings and integers") from None
    if not isinstance(value, list | tuple):
        raise CorpusError(f"{where}: {shown(text)} is not a list")
    return list(value)


def _require_tokens(text: str, where: str) -> None:
    place, depth = 0, 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise CorpusError(
                f"{where}: {shown(text[place : place + 40])} is not part of a list of strings and integers"
            )
        token = match.group()
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth > _MAX_DEPTH:
            raise CorpusError(f"{where}: a list of more than {_MAX_DEPTH} levels")
        place = match.end()
