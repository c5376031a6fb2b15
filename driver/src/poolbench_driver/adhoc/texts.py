"""Files of texts: JSONL with a field 'text', or plain text with one text per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.errors import InputError, shown

#: Characters of a text that every service takes.
MAX_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class TextLine:
    """A text of a file, with its line number from 1 and its field 'id', if any."""

    number: int
    text: str
    id: str | None = None

    @property
    def invalid(self) -> str | None:
        """Return why the text is not sent: it is far longer than any window, or no valid Unicode; None otherwise."""
        if len(self.text) > MAX_CHARACTERS:
            return f"{len(self.text)} characters; a text may have {MAX_CHARACTERS}"
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            return f"no valid Unicode: {error.reason} at character {error.start}"
        return None


def read_texts(file: Path) -> list[str]:
    """Return the texts of a file; raise InputError, with file and line, as `read_lines` or for an empty text."""
    lines = read_lines(file)
    for line in lines:
        if not line.text.strip():
            raise InputError(
                f"{file}, line {line.number}: 'text' is {line.text!r}; it must be a text that is not empty"
            )
    return [line.text for line in lines]


def read_lines(file: Path) -> list[TextLine]:
    """Return texts with line numbers and ids, without blank lines; raise InputError with file and line."""
    try:
        # Not splitlines(): U+2028 in a JSON string does not end a JSONL line.
        lines = file.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 at byte {error.start}; convert it") from None
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    lines_of_text = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if file.suffix == ".jsonl":
        texts = [_parse(line, number, file) for number, line in lines_of_text]
    else:
        texts = [TextLine(number, line) for number, line in lines_of_text]
    if not texts:
        raise InputError(f"{file} is empty; expected one text a line")
    _require_unique_ids(texts, file)
    return texts


def _parse(line: str, number: int, file: Path) -> TextLine:
    try:
        row: dict[str, Any] = json.loads(line)
        text, name = row["text"], row.get("id")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}, line {number}: expected a JSON object with a field 'text' ({error})") from None
    if not isinstance(text, str):
        raise InputError(f"{file}, line {number}: 'text' is {shown(text)}; it must be a text")
    if name is None:
        return TextLine(number, text)
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).isprintable():
        raise InputError(f"{file}, line {number}: 'id' is {shown(name)}; it must be a name or a number")
    return TextLine(number, text, str(name))


def _require_unique_ids(lines: list[TextLine], file: Path) -> None:
    first: dict[str, int] = {}
    for line in lines:
        if line.id is not None and first.setdefault(line.id, line.number) != line.number:
            raise InputError(
                f"{file}, line {line.number}: id {shown(line.id)} is that of line {first[line.id]}; ids differ"
            )
