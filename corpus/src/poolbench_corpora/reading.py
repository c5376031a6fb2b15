"""The reader of tables and texts of users, for every command and service.

| ending | content |
|---|---|
| `.txt` | one text per line |
| `.jsonl`, `.ndjson` | one JSON object per line |
| `.json` | a list of JSON objects, or one object per line |
| `.csv`, `.tsv` | a head, and one row per record; a CSV may have semicolons or tabs instead of commas |
| `.parquet`, `.pq` | Parquet |
| `.arrow`, `.feather`, `.ipc` | Arrow's stream format, as `datasets` saves it, or its file format |

Each may be compressed (`.gz`), and endings may be in capitals. Parquet, Arrow and gzip are known by their first bytes,
whatever the name. Text is UTF-8, or UTF-16 with a byte order mark. Anything else is refused.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TextIO, cast

from poolbench.errors import CorpusError, shown

if TYPE_CHECKING:
    import pyarrow as pa

#: Longest text in characters. A passage of 500 tokens has about 3,000.
MAX_CHARACTERS = 1_000_000
#: Longest line: such a text as JSON, all `\uXXXX`, with other fields. A file without line ends is one line.
MAX_LINE = 8 * MAX_CHARACTERS
#: Most bytes, or characters, of what is read as a whole: JSON lists, and compressed Parquet and Arrow files.
MAX_WHOLE = 1 << 30
_BATCH = 1000  # rows of a Parquet file at once
_PARQUET, _ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
#: Ends of the names of tables; compressed ones end in `.gz` too.
TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", *_PARQUET, *_ARROW)
ENDINGS = (*TABLE_ENDINGS, ".txt")
_GZIP = (b"\x1f\x8b", ".gz")
_BLANK: Mapping[str, Any] = MappingProxyType({"text": ""})
_LINE_END = re.compile(rb"\r\n|\r|\n")  # as text files are read
#: What data frames write for a missing value as text.
_MISSING = frozenset(("", "nan", "NaN", "NaT", "<NA>"))


@dataclass(frozen=True)
class SentFile:
    """A file whose content came in a request. It can be opened, and named in errors, like a file on disk."""

    name: str
    content: bytes

    def open(self, mode: str) -> BinaryIO:
        """Return the content as a binary file."""
        return cast(BinaryIO, io.BufferedReader(io.BytesIO(self.content)))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.name


TextFile = Path | SentFile
"""Where texts are read from."""


class Row(NamedTuple):
    """A record of a file, or a line of plain text as the only field `text`."""

    number: int  # of the line from 1, blank ones included; of the record, in tables
    where: str  # file and line, for messages
    values: Mapping[str, Any]


def records(file: TextFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each record with its file and line. Raise the CorpusErrors of `read_rows`."""
    return ((row.where, row.values) for row in read_rows(file))


def read_rows(file: TextFile, *, blank_lines: bool = False) -> Iterator[Row]:
    """Yield the records of a file.

    Fields of Parquet and Arrow files are converted on access, so unused fields may have any type.

    Args:
        blank_lines: Whether blank lines of plain text are rows too, with an empty text.

    Raises:
        CorpusError: The file is of no known kind, damaged or empty. Or a line is not JSON, has another number of fields
            than the header, or is longer than `MAX_LINE`. The error names file and line.
    """
    is_empty = True
    try:
        with _opened(file) as (stream, kind):
            rows = _column_rows(stream, file, kind) if kind in (*_PARQUET, *_ARROW) else _text_rows(stream, file, kind)
            for row in rows:
                if row.values is not _BLANK or blank_lines:
                    is_empty = False
                    yield row
    except UnicodeDecodeError as error:
        raise CorpusError(_undecodable(file, error)) from None
    if is_empty:
        raise CorpusError(f"{file} is empty: it has no texts")


def read_document(file: TextFile, max_characters: int = MAX_WHOLE) -> str:
    """Return the whole text of a plain or compressed file. Raise CorpusError if it is too long or not text."""
    try:
        with _opened(file, any_ending=True) as (stream, _), _decoded(stream, newline="") as text:
            content = text.read(max_characters + 1)
    except UnicodeDecodeError as error:
        raise CorpusError(_undecodable(file, error)) from None
    if len(content) > max_characters:
        raise CorpusError(f"{file} has more than {max_characters:,} characters; cut it into parts")
    return content


def ending(name: str) -> str:
    """Return the known ending of a file name in lower case, such as `.csv` or `.csv.gz`, or ""."""
    small = name.lower()
    base = small.removesuffix(_GZIP[1])
    return next((suffix + small[len(base) :] for suffix in ENDINGS if base.endswith(suffix)), "")


def stem_of(file: Path) -> str:
    """Return the name of a file without its known ending."""
    return file.name[: len(file.name) - len(ending(file.name))]


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: null, NaN, blank, or how data frames write these as text (`nan`, `<NA>`)."""
    if isinstance(value, str):
        return value.strip() in _MISSING
    return value is None or (isinstance(value, float | Decimal) and math.isnan(value))


def name_in(values: Mapping[str, Any], column: str, where: str) -> str:
    """Return the value of a column as text, for ids, labels and groups.

    A whole number is written without `.0`.

    Returns:
        The value, or "" if the record has no value in this column.

    Raises:
        CorpusError: The value is a list, an object or bytes.
    """
    value = values.get(column)
    if is_missing(value):
        return ""
    if isinstance(value, Mapping | list | tuple | bytes):
        kind = type(value).__name__
        raise CorpusError(f"{where}: {column!r} is a {kind}, {shown(str(value))}; it must be a name or a number")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def text_in(values: Mapping[str, Any], column: str, where: str) -> str:
    """Return the text in a column of a record, or "" for null and NaN.

    Raise CorpusError if the record lacks the column, or the value is not a text.
    """
    if column not in values:
        raise CorpusError(f"{where}: no {column!r}; the record has {', '.join(map(str, values)) or 'nothing'}")
    value = values[column]
    if not isinstance(value, str):
        if is_missing(value):
            return ""
        raise CorpusError(f"{where}: {column!r} is {shown(str(value))}; it must be a text")
    return value


def marks_missing(labels: Iterable[str]) -> bool:
    """Return whether the label -1 stands for a missing label.

    It does if there are at least two other labels and all of them are whole numbers from 0. Datasets on hubs number
    their classes from 0, and give -1 to the rows of a hidden test split.
    """
    others = {label for label in labels if label and not is_unlabelled(label)}
    return len(others) > 1 and all(_number(label) >= 0 and _number(label).is_integer() for label in others)


def is_unlabelled(label: str) -> bool:
    """Return whether a label is -1."""
    return _number(label) == -1


def _number(label: str) -> float:
    try:
        return float(label)
    except ValueError:
        return float("nan")


@contextmanager
def _opened(file: TextFile, *, any_ending: bool = False) -> Iterator[tuple[io.BufferedReader, str]]:
    """Open a file, unpacked, with its kind: one of `ENDINGS`, by content where that shows it."""
    try:
        with file.open("rb") as raw:
            stream = cast(io.BufferedReader, raw)
            if stream.peek(2).startswith(_GZIP[0]):
                stream = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=stream)))
            yield stream, _kind(stream.peek(8), file, any_ending=any_ending)
    except FileNotFoundError:
        raise CorpusError(f"{file}: no such file") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CorpusError(f"{file} is not a whole gzip file: {error}") from None
    except OSError as error:
        raise CorpusError(f"{file}: {error.strerror or error}") from None


def _kind(head: bytes, file: TextFile, *, any_ending: bool) -> str:
    if head.startswith(b"PAR1"):
        return ".parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return ".arrow"
    name = Path(str(file)).name
    kind = ending(name).removesuffix(_GZIP[1])
    if not kind and not any_ending:
        raise CorpusError(
            f"{file}: no table or text that is read here: expected a file that ends in {', '.join(ENDINGS)}, or one of "
            "these with .gz; rename it, or convert it"
        )
    return kind


def _decoded(stream: io.BufferedReader, newline: str | None = None) -> io.TextIOWrapper:
    is_utf16 = stream.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return io.TextIOWrapper(stream, encoding="utf-16" if is_utf16 else "utf-8-sig", newline=newline)


def _text_rows(stream: io.BufferedReader, file: TextFile, kind: str) -> Iterator[Row]:
    # Line ends inside the quotes of a CSV are part of the field.
    with _decoded(stream, newline="" if kind in (".csv", ".tsv") else None) as text:
        if kind == ".json":
            yield from _json_rows(text, file)
        elif kind in (".csv", ".tsv"):
            yield from _csv_rows(text, file, kind)
        elif kind == ".txt":
            for number, line in enumerate(_lines(text, file), start=1):
                content = line.removesuffix("\n")
                yield Row(number, f"{file}, line {number}", {"text": content} if content.strip() else _BLANK)
        else:
            yield from _json_lines(text, file)


def _lines(text: TextIO, file: TextFile) -> Iterator[str]:
    """Yield lines with their ends, none longer than `MAX_LINE` characters."""
    number = 0
    while line := text.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise CorpusError(f"{file}, line {number}: more than {MAX_LINE:,} characters; cut it into passages")
        if "\0" in line:
            raise CorpusError(
                f"{file}, line {number}: a NUL character: no text, or UTF-16 without its mark; save it as UTF-8"
            )
        yield line


def _json_lines(text: TextIO, file: TextFile) -> Iterator[Row]:
    for number, line in enumerate(_lines(text, file), start=1):
        where = f"{file}, line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{where}: not JSON ({error}); one object per line is expected") from None
        yield Row(number, where, _object(values, where))


def _json_rows(text: TextIO, file: TextFile) -> Iterator[Row]:
    """Yield the objects of a list, a single one, or those of lines: `.json` is the end of all three."""
    content = text.read(MAX_WHOLE + 1)
    if len(content) > MAX_WHOLE:
        raise CorpusError(f"{file} has more than {MAX_WHOLE:,} characters; write one object per line, as .jsonl")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        if content.lstrip().startswith("["):
            raise CorpusError(f"{file}: not JSON ({error}); a list of objects is expected") from None
        yield from _json_lines(io.StringIO(content), file)
        return
    for number, values in enumerate(document if isinstance(document, list) else [document], start=1):
        where = f"{file}, record {number}"
        yield Row(number, where, _object(values, where))


def _object(values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise CorpusError(f'{where}: a {type(values).__name__}; expected an object such as {{"text": "..."}}')
    return values


def _csv_rows(text: TextIO, file: TextFile, kind: str) -> Iterator[Row]:
    lines, begin = _lines(text, file), list[str]()
    while not "".join(begin).strip() and (line := next(lines, "")):
        begin.append(line)
    # Spreadsheets of some languages separate the names of the head by semicolons or tabs.
    bare = re.sub(r'"[^"]*"', "", begin[-1] if begin else "")
    delimiter = "\t" if kind == ".tsv" else next((separator for separator in ",;\t" if separator in bare), ",")
    reader, number = csv.reader(chain(begin, lines), delimiter=delimiter, strict=True), 0
    csv.field_size_limit(MAX_LINE)
    try:
        head = [name.strip() for name in next(filter(None, reader), [])]
        _require_distinct(head, file)
        end = reader.line_num
        for cells in reader:
            start, end = end, reader.line_num
            where = f"{file}, line {end}"
            if not cells:
                continue
            if len(cells) != len(head):
                raise CorpusError(f"{where}: another number of fields than the {len(head)} columns: {len(cells)}")
            if kind == ".tsv" and end > start + 1:
                # Where quotes are plain characters, two of them would join what lies between them.
                raise CorpusError(f"{where}: a field of several lines, which a TSV cannot hold; save it as CSV")
            number += 1
            yield Row(number, where, dict(zip(head, cells, strict=True)))
    except csv.Error as error:
        raise CorpusError(f"{file}, line {reader.line_num}: {error}") from None


def _require_distinct(names: Sequence[str], file: TextFile) -> None:
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise CorpusError(f"{file}: the column {shown(twice[0])} is there twice; keep one of them")


class _Cells(Mapping[str, Any]):
    """A row of a batch of columns. `valid` holds the columns of the batch that were found sound, by place."""

    def __init__(self, batch: pa.RecordBatch, index: int, where: str, valid: dict[int, pa.Array]) -> None:
        self._batch, self._index, self._where, self._valid = batch, index, where, valid

    def __getitem__(self, name: str) -> Any:
        place = self._batch.schema.get_field_index(name)
        if place < 0:
            raise KeyError(name)
        try:
            if place not in self._valid:  # Arrow would follow the offsets of a damaged file to anywhere in memory
                self._batch.column(place).validate(full=True)
                self._valid[place] = self._batch.column(place)
            return self._valid[place][self._index].as_py()
        except Exception as error:  # dates beyond those of Python, unknown time zones, bytes that are not UTF-8
            raise CorpusError(f"{self._where}: {name!r} cannot be read: {error}; convert the column") from None

    def __contains__(self, name: object) -> bool:
        return name in self._batch.schema.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.schema.names)

    def __len__(self) -> int:
        return len(self._batch.schema.names)


def _column_rows(stream: io.BufferedReader, file: TextFile, kind: str) -> Iterator[Row]:
    import pyarrow as pa  # the command line starts without it

    number, is_parquet = 0, kind in _PARQUET
    try:
        for batch in _batches(stream, file, is_parquet=is_parquet):
            batch.validate()
            _require_distinct(batch.schema.names, file)
            valid = dict[int, Any]()
            for index in range(batch.num_rows):
                number += 1
                where = f"{file}, row {number}"
                yield Row(number, where, _Cells(batch, index, where, valid))
    except (pa.ArrowException, OSError, MemoryError) as error:  # the last for sizes that a damaged file claims
        name = "Parquet" if is_parquet else "Arrow"
        raise CorpusError(f"{file} is not a whole {name} file: {error}") from None


def _batches(stream: io.BufferedReader, file: TextFile, *, is_parquet: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_parquet and not stream.peek(6).startswith(b"ARROW1"):
        yield from pa.ipc.open_stream(stream)
        return
    source: Any = stream
    if isinstance(stream.raw, gzip.GzipFile) or not stream.seekable():  # the directory is at the end
        source = pa.BufferReader(stream.read(MAX_WHOLE))
        if stream.peek(1):
            raise CorpusError(f"{file} has more than {MAX_WHOLE:,} bytes; give the uncompressed file")
    if is_parquet:
        yield from pq.ParquetFile(source).iter_batches(_BATCH)
        return
    arrow = pa.ipc.open_file(source)
    for number in range(arrow.num_record_batches):
        yield arrow.get_batch(number)


def _undecodable(file: TextFile, error: UnicodeDecodeError) -> str:
    if error.encoding.startswith("utf-16"):
        return f"{file} is not whole UTF-16 ({error.reason}); save it as UTF-8"
    return f"{file} is not UTF-8 {_first_wrong_line(file)}; convert it"


def _first_wrong_line(file: TextFile) -> str:
    number = 1
    with _opened(file, any_ending=True) as (stream, _):
        for part in iter(lambda: stream.readline(4 * MAX_LINE), b""):  # a character has up to four bytes
            try:
                part.decode("utf-8")
            except UnicodeDecodeError as error:
                before = _LINE_END.split(part[: error.start])
                return f"in line {number + len(before) - 1}, byte {len(before[-1]) + 1}"
            number += len(_LINE_END.findall(part))
    return "at its end"
