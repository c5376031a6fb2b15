"""Texts of a file, as ad-hoc commands send them: a table with a column 'text', or plain text, one text per line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from poolbench.errors import InputError, shown
from poolbench_corpora.reading import MAX_CHARACTERS, TABLE_ENDINGS, Row, ending, name_in, read_rows, text_in


@dataclass(frozen=True)
class TextLine:
    """A text of a file, with its line number from 1 and its field 'id', if any."""

    number: int
    text: str
    id: str | None = None
    where: str = field(default="", compare=False)  # file and line, for messages

    @property
    def invalid(self) -> str | None:
        """Return why the text is not sent (empty, far longer than any window, or not valid Unicode), or None."""
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

    Raise InputError, with file and line, as `read_lines`, or for a record without text.
    """
    lines = read_lines(file)
    if not ending(file.name).startswith(".txt"):
        for line in lines:
            if not line.text.strip():
                raise InputError(f"{line.where}: 'text' is empty or missing; remove the record")
    return [line for line in lines if line.text.strip()]


def read_lines(file: Path, columns: Mapping[str, str] | None = None) -> list[TextLine]:
    """Return all texts with line numbers and ids. Blank lines of plain text are included, so that rows match labels.

    A missing text is "", and its row fails later.

    Args:
        columns: Names of the columns for `text` and `id` in a table. By default, `text` and `id`.

    Raises:
        InputError: With file and line.
    """
    if columns and not ending(file.name).startswith(TABLE_ENDINGS):
        raise InputError(f"{file}: columns have names in files that end in {', '.join(TABLE_ENDINGS)}")
    names = columns or {}
    rows = read_rows(file, blank_lines=True)
    lines = [_text_line(row, names.get("text", "text"), names.get("id", "id")) for row in rows]
    if not any(line.text.strip() for line in lines):
        raise InputError(f"{lines[0].where}: the text is empty or missing, and so are all others")
    first: dict[str, int] = {}
    for line in lines:
        if line.id is not None and first.setdefault(line.id, line.number) != line.number:
            raise InputError(f"{line.where}: id {shown(line.id)} is that of line {first[line.id]}; ids differ")
    return lines


def _text_line(row: Row, text_column: str, id_column: str) -> TextLine:
    name = name_in(row.values, id_column, row.where)
    if not name.isprintable():
        raise InputError(f"{row.where}: {id_column!r} is {shown(name)}; it must be a name or a number")
    return TextLine(row.number, text_in(row.values, text_column, row.where), name or None, row.where)
