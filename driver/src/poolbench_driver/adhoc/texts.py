"""Files of texts: JSONL, CSV, Parquet or Arrow with a column 'text', or plain text with one text per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.errors import InputError, shown

#: Characters of a text that every service takes.
MAX_CHARACTERS = 1_000_000
#: Files whose columns have names.
TABLES = (".csv", ".parquet", ".arrow")


@dataclass(frozen=True)
class TextLine:
    """A text of a file, with its line number from 1 and its field 'id', if any."""

    number: int
    text: str
    id: str | None = None

    @property
    def invalid(self) -> str | None:
        """Return why the text is not sent: empty, far longer than any window, or not valid Unicode; None otherwise."""
        if not self.text.strip():
            return "the text is empty"
        if len(self.text) > MAX_CHARACTERS:
            return f"{len(self.text)} characters; a text may have {MAX_CHARACTERS}"
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            return f"no valid Unicode: {error.reason} at character {error.start}"
        return None


def read_texts(file: Path) -> list[TextLine]:
    """Return the texts of a file without the blank lines of plain text.

    Raise InputError, with file and line, as `read_lines`, or for a record with an empty text.
    """
    lines = read_lines(file)
    empty = [line for line in lines if not line.text.strip()]
    if empty and (file.suffix == ".jsonl" or file.suffix in TABLES):
        raise InputError(f"{file}, line {empty[0].number}: 'text' is {empty[0].text!r}; it must be a text with words")
    return [line for line in lines if line not in empty]


def read_lines(file: Path, columns: Mapping[str, str] | None = None) -> list[TextLine]:
    """Return all texts with line numbers and ids; blank lines of plain text too, so that rows match labels.

    Args:
        columns: Names of the columns `text` and `id` in a table; by default their own.

    Raises:
        InputError: With file and line.
        CorpusError: The same, for a table.
    """
    if file.suffix in TABLES:
        texts = _rows(file, columns or {})
    elif columns:
        raise InputError(f"{file}: columns have names in files that end in {', '.join(TABLES)}")
    else:
        texts = _lines(file)
    if not any(line.text.strip() for line in texts):
        raise InputError(f"{file} is empty; expected one text a line")
    _require_unique_ids(texts, file)
    return texts


def _lines(file: Path) -> list[TextLine]:
    try:
        # Not splitlines(): U+2028 in a JSON string does not end a JSONL line.
        lines = file.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 at byte {error.start}; convert it") from None
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    if file.suffix == ".jsonl":
        return [_parse(line, number, file) for number, line in enumerate(lines, 1) if line.strip()]
    return [TextLine(number, line) for number, line in enumerate(lines, 1)]


def _rows(file: Path, columns: Mapping[str, str]) -> list[TextLine]:
    from poolbench_corpora.own.files import records

    text, name = columns.get("text", "text"), columns.get("id", "id")
    return [_text_line(row, number, where, text, name) for number, (where, row) in enumerate(records(file), 1)]


def _parse(line: str, number: int, file: Path) -> TextLine:
    where = f"{file}, line {number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected a JSON object with a field 'text' ({error})") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object with a field 'text', got {shown(row)}")
    return _text_line(row, number, where, "text", "id")


def _text_line(row: Mapping[str, Any], number: int, where: str, text_column: str, id_column: str) -> TextLine:
    if text_column not in row:
        here = ", ".join(map(str, row)) or "nothing"
        raise InputError(f"{where}: no {text_column!r}; there is {here}")
    text, name = row[text_column], row.get(id_column)
    if not isinstance(text, str):
        raise InputError(f"{where}: {text_column!r} is {shown(text)}; it must be a text")
    if name is None:
        return TextLine(number, text)
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).isprintable():
        raise InputError(f"{where}: {id_column!r} is {shown(name)}; it must be a name or a number")
    return TextLine(number, text, str(name))


def _require_unique_ids(lines: list[TextLine], file: Path) -> None:
    first: dict[str, int] = {}
    for line in lines:
        if line.id is not None and first.setdefault(line.id, line.number) != line.number:
            raise InputError(
                f"{file}, line {line.number}: id {shown(line.id)} is that of line {first[line.id]}; ids differ"
            )
