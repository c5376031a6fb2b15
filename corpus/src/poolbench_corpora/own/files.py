"""Read texts from JSONL, CSV, Parquet, Arrow and plain text files; errors name the file and the line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from poolbench.errors import CorpusError

#: Longest line in characters. A passage of 500 tokens has about 3,000; a file without line ends is one line.
MAX_LINE = 1_000_000
_BATCH = 1000  # rows of a Parquet file at once
_FIELDS = {
    "id": ("id", "passage_id"),
    "text": ("text", "passage"),
    "domain": ("domain",),
    "document": ("doc_id", "document"),
    "source": ("source",),
    "licence": ("licence", "license"),
}
_LINE_END = re.compile(rb"\r\n|\r|\n")  # as text files are read
MARKUP = re.compile(r"<!doctype html|<html[\s>]|<body[\s>]|</(?:p|div|span|td|li|a)>", re.I)


@dataclass(frozen=True)
class SentFile:
    """A file that a request holds: opened, and named in errors, as one on disk is."""

    name: str
    content: bytes

    @property
    def suffix(self) -> str:
        """Return the end of the name."""
        return PurePath(self.name).suffix

    def open(self, mode: str, encoding: str | None = None, newline: str | None = None) -> IO[Any]:
        """Return the content as bytes, or as text in an encoding."""
        file = io.BytesIO(self.content)
        return file if mode == "rb" else io.TextIOWrapper(file, encoding=encoding, newline=newline)

    def __str__(self) -> str:
        return self.name


TextFile = Path | SentFile
"""Where texts are read from."""


@dataclass(frozen=True)
class Text:
    """One text of a user's file."""

    text: str
    where: str  # file and line
    id: str = ""
    domain: str = ""
    document: str = ""  # source document, empty where the file names none
    source: str = ""
    licence: str = ""
    split: str = ""  # train, test or scorer; empty where the file names none


def read_texts(path: TextFile) -> list[Text]:
    """Return the texts of a file with a column `text`.

    Further columns, all optional: `id`, `domain`, `doc_id`, `source`, `licence`.

    Raises:
        CorpusError: With file and line: not UTF-8, no JSON or CSV, a missing or empty text, HTML, a line of more than
            1,000,000 characters.
    """
    return [text_of(values, where) for where, values in records(path)]


def read_pairs(path: TextFile) -> list[tuple[Text, Text]]:
    """Return the matched pairs of a file with the columns `positive` and `negative`.

    Further columns as `read_texts`; they hold for both members. Raises CorpusError likewise.
    """
    pairs = []
    for where, values in records(path):
        members = (_text(values, (name,), where) for name in ("positive", "negative"))
        positive, negative = (Text(where=where, text=text, **_optional(values, where)) for text in members)
        pairs.append((positive, negative))
    return pairs


def text_of(values: dict[str, Any], where: str) -> Text:
    """Return the text of a record. Raise CorpusError as `read_texts`."""
    return Text(where=where, text=_text(values, _FIELDS["text"], where), **_optional(values, where))


def records(path: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each record with its file and line (row, in Parquet and Arrow); raise CorpusError for a file without any.

    Arrow files are those that `datasets` saves. Plain text has one text per line, and no other column.
    """
    text = {".jsonl": _json_records, ".ndjson": _json_records, ".csv": _csv_records, ".txt": _plain_records}
    columns = {".parquet": _column_records, ".arrow": _column_records}
    kind, empty = path.suffix.lower(), True
    if kind not in text | columns:
        raise CorpusError(f"{path}: expected a file that ends in .jsonl, .csv, .parquet, .arrow or .txt")
    try:
        file: IO[Any]
        with path.open("rb") if kind in columns else path.open("r", encoding="utf-8-sig", newline="") as file:
            for record in (text | columns)[kind](file, path):
                empty = False
                yield record
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such file") from None
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CorpusError(f"{path} is not UTF-8 {_first_wrong_line(path)}; convert it") from None
    if empty:
        raise CorpusError(f"{path} has no texts")


def _lines(file: IO[str], path: TextFile) -> Iterator[str]:
    """Yield lines with their ends, none longer than `MAX_LINE` characters."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise CorpusError(f"{path}, line {number}: more than {MAX_LINE:,} characters; cut it into passages")
        yield line


def _plain_records(file: IO[str], path: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(file, path), start=1):
        if line.strip():
            yield f"{path}, line {number}", {"text": line}


def _json_records(file: IO[str], path: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(file, path), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{where}: not JSON ({error}); one object per line is expected") from None
        if not isinstance(values, dict):
            raise CorpusError(f'{where}: a {type(values).__name__}; expected an object such as {{"text": "..."}}')
        yield where, values


def _csv_records(file: IO[str], path: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(_lines(file, path), strict=True)
    csv.field_size_limit(MAX_LINE)
    try:
        for values in reader:
            where = f"{path}, line {reader.line_num}"
            if None in values or None in values.values():
                raise CorpusError(f"{where}: another number of fields than the {len(reader.fieldnames or ())} columns")
            yield where, values
    except csv.Error as error:
        raise CorpusError(f"{path}, line {reader.line_num}: {error}") from None


def _column_records(file: IO[Any], path: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    is_parquet, number = path.suffix.lower() == ".parquet", 0
    try:
        for batch in pq.ParquetFile(file).iter_batches(_BATCH) if is_parquet else pa.ipc.open_stream(file):
            for values in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", values
    except (pa.ArrowException, OSError) as error:
        kind = "Parquet file" if is_parquet else "Arrow stream"
        raise CorpusError(f"{path} is not a whole {kind}: {error}") from None


def _text(values: dict[str, Any], names: Sequence[str], where: str) -> str:
    text = next((values[name] for name in names if name in values), None)
    if text is None:
        here = ", ".join(map(str, values)) or "nothing"
        raise CorpusError(f"{where}: no {names[0]!r}; the record has {here}")
    if not isinstance(text, str) or not text.strip():
        raise CorpusError(f"{where}: {names[0]!r} is empty or no text; remove the record")
    if MARKUP.search(text):
        raise CorpusError(f"{where}: {names[0]!r} holds HTML; give the plain text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CorpusError(f"{where}: a lone surrogate, which is not valid Unicode; correct the text") from None
    return text.replace("\r\n", "\n").strip()


def _optional(values: dict[str, Any], where: str) -> dict[str, str]:
    found = {}
    for field, names in _FIELDS.items():
        if field != "text":
            value = next((values[name] for name in names if values.get(name) is not None), "")
            if not isinstance(value, str | int):
                raise CorpusError(f"{where}: {field!r} is a {type(value).__name__}; expected text")
            found[field] = str(value).strip()
    return found


def _first_wrong_line(path: TextFile) -> str:
    number = 1
    with path.open("rb") as file:
        for part in iter(lambda: file.readline(4 * MAX_LINE), b""):  # a character has up to four bytes
            try:
                part.decode("utf-8")
            except UnicodeDecodeError as error:
                before = _LINE_END.split(part[: error.start])
                return f"in line {number + len(before) - 1}, byte {len(before[-1]) + 1}"
            number += len(_LINE_END.findall(part))
    return "at its end"
