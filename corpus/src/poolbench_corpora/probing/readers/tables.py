"""Samples of tables, with lists as Python literals: those of users, of the public suite, and of SentEval."""

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from poolbench.errors import ConfigError, CorpusError, shown
from poolbench_corpora.probing.samples import PAIRS, Note, ProbingSet, Sample, Span, whole, word_type
from poolbench_corpora.probing.shipped import require_columns, require_unchanged
from poolbench_corpora.reading import Row as TableRow
from poolbench_corpora.reading import is_missing, name_in, read_rows, records, text_in

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


Row = Mapping[str, Any]
Spans = tuple[Span, ...]
_WITH_SPANS = ("span", "span_pieces", "span_pair")
_SENTEVAL_SPLITS = {"tr": "train", "va": "dev", "te": "test"}


def read_table(definition: ProbingSet, *, file: str, passages: str | None = None) -> Iterator[Sample | Note]:
    """Yield the samples of a table beside the definition, in any format of `poolbench_corpora.reading`.

    A row has `text` (and `span`, `text_2`, `span_2`), or `inputs` (and `context`) as the public suite has them. Further
    columns: `label`, and optionally `id`, `split` (or `set-0`), `group` and `word`. A span is written as `3:9`, the
    pieces of one as `3:9 12:15`; where it is missing, the whole text is read, with a note. A row without text becomes a
    note.

    Args:
        passages: Table of texts beside the definition. Rows then have their numbers, `passage` and `passage_2`, in
            place of texts. Both files have their SHA-256 in the folder's manifest, and a wrong row is an error.

    Raises:
        ConfigError: A file lies outside the folder of the definition.
        CorpusError: A file cannot be read as a table, lacks a column, or is not the one of the manifest.
    """
    path = _beside(definition, file)
    texts = None if passages is None else _shared_texts(definition, path, _beside(definition, passages))
    for number, row in enumerate(read_rows(path)):
        if texts is not None and number == 0:
            require_columns(row, path, *_required(definition))
        try:
            values = row.values if texts is None else {**row.values, **_texts_of(row, texts)}
            sample = _sample(definition, values, row.where, number)
            if definition.input in _WITH_SPANS and "span" in row.values and is_missing(row.values["span"]):
                yield Note(row.where, "no span: the whole text is read")
            yield sample
        except CorpusError as error:
            if texts is not None:
                raise
            yield Note(row.where, str(error).removeprefix(f"{row.where}: "))


def _required(definition: ProbingSet) -> Sequence[str]:
    """Return the columns of a table of instances that refers to passages."""
    ends = ("", "_2") if definition.input in PAIRS else ("",)
    names = ("passage", "span") if definition.input in _WITH_SPANS else ("passage",)
    return ["label", *(f"{name}{end}" for end in ends for name in names)]


def _shared_texts(definition: ProbingSet, path: Path, passages: Path) -> Sequence[str]:
    folder = _beside(definition, "")
    require_unchanged(path, folder)
    return _texts(passages, require_unchanged(passages, folder))


@lru_cache(maxsize=4)  # the sets of a folder share them
def _texts(path: Path, _sha256: str) -> Sequence[str]:
    return [text_in(row, "text", where) for where, row in records(path)]


def _texts_of(row: TableRow, texts: Sequence[str]) -> dict[str, Any]:
    """Return the texts that a row refers to. Raise CorpusError if there are none of its numbers."""
    of_row: dict[str, Any] = {}
    for ending in ("", "_2"):
        number = row.values.get(f"passage{ending}")
        if number is None:
            continue
        if not isinstance(number, int) or not 0 <= number < len(texts):
            raise CorpusError(f"{row.where}: there is no passage {shown(str(number))}; there are {len(texts):,}")
        of_row[f"text{ending}"] = texts[number]
    return of_row


def read_senteval(definition: ProbingSet, *, file: str) -> Iterator[Sample | Note]:
    """Yield the samples of a file with one `split`, `label` and `text` per line, separated by tabs."""
    path = _beside(definition, file)
    for number, (where, row) in enumerate(records(path)):
        split, _, rest = row["text"].rstrip("\r\n").partition("\t")
        label, _, text = rest.partition("\t")
        if split not in _SENTEVAL_SPLITS or not text.strip():
            yield Note(where, "expected split (tr, va or te), label and text, separated by tabs")
            continue
        yield Sample(str(number), whole(text), split=_SENTEVAL_SPLITS[split], where=where, **_target(definition, label))


def _beside(definition: ProbingSet, file: str) -> Path:
    folder = (definition.folder or Path()).resolve()
    path = (folder / str(file)).resolve()
    if not path.is_relative_to(folder):
        raise ConfigError(f"probing set {definition.id!r}: file {file!r} lies outside the folder of the definition")
    return path


def _sample(definition: ProbingSet, row: Row, where: str, number: int) -> Sample:
    first, second = _spans(definition, row, where)
    names = {name: name_in(row, name, where) for name in ("id", "split", "set-0", "group", "word", "label")}
    return Sample(
        names["id"] or str(number),
        first,
        second,
        split=names["split"] or names["set-0"] or None,
        group=names["group"],
        word=names["word"].lower() or word_type(*first),
        where=where,
        **_target(definition, names["label"]),
    )


def _target(definition: ProbingSet, label: str) -> dict[str, Any]:
    if definition.task == "classes":
        return {"label": label}
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    return {"label": label, "value": value if math.isfinite(value) else None}


def _spans(definition: ProbingSet, row: Row, where: str) -> tuple[Spans, Spans]:
    if "inputs" in row:
        return suite_spans(definition, literal_in(row, "inputs"), literal_in(row, "context"), where)
    if "text" not in row:
        raise CorpusError(f"{where}: no column 'text' or 'inputs'; the columns are {', '.join(map(str, row))}")
    first = _marked(row, "text", "span", where)
    return first, _marked(row, "text_2", "span_2", where) if definition.input in PAIRS else ()


def _marked(row: Row, column: str, spans: str, where: str) -> Spans:
    text, written = text_in(row, column, where), name_in(row, spans, where)
    if is_missing(text):
        raise CorpusError(f"{where}: {column!r} is empty or missing")
    if written:
        return tuple(Span(text, *_numbers(part, where)) for part in written.split())
    return whole(text)


def literal_in(row: Row, column: str) -> str:
    """Return a list of the suite as its literal, whether the table holds it as text or as a list; "" if missing."""
    value = row.get(column)
    return "" if is_missing(value) else str(value)


def _numbers(part: str, where: str) -> tuple[int, int]:
    start, _, end = part.partition(":")
    if not (start.isdecimal() and end.isdecimal()) or len(part) > 20:
        raise CorpusError(f"{where}: span {part!r} is not of the form start:end")
    return int(start), int(end)


def suite_spans(definition: ProbingSet, inputs: str, context: str, where: str) -> tuple[Spans, Spans]:
    """Return the spans of `inputs` and `context` as the public suite writes them.

    Texts are a list of strings. Spans are a list of (characters, number of the context, start, end), whose contexts are
    a list of strings. A piece of a span has a fifth element, the number of the span that it belongs to.

    Raises:
        CorpusError: With `where`: another form, or a context that does not exist.
    """
    elements = read_list(inputs, where)
    if definition.input in ("text", "text_pair"):
        parts = [
            whole(element) if isinstance(element, str) else _fail(f"{where}: {element!r} is not a text")
            for element in elements
        ]
    else:
        contexts = read_list(context, where)
        parts = _by_number([_suite_span(element, contexts, number, where) for number, element in enumerate(elements)])
    if len(parts) != (2 if definition.input in PAIRS else 1):
        raise CorpusError(f"{where}: {len(parts)} texts or spans, in a set with input {definition.input!r}")
    return parts[0], parts[1] if len(parts) == 2 else ()


def _suite_span(element: Any, contexts: list[Any], place: int, where: str) -> tuple[int, Span]:
    """Return a span with the number of the span that it is a piece of, by default its place in the list."""
    if not isinstance(element, tuple | list) or len(element) not in (4, 5):
        raise CorpusError(f"{where}: a span has characters, the number of its context, start and end")
    _, number, start, end, *of = element
    if not all(isinstance(part, int) for part in (number, start, end, *of)):
        raise CorpusError(f"{where}: the numbers of a span are not whole numbers")
    if not 0 <= number < len(contexts) or not isinstance(contexts[number], str):
        raise CorpusError(f"{where}: there is no context {number}")
    return (of[0] if of else place), Span(contexts[number], start, end)


def _by_number(spans: list[tuple[int, Span]]) -> list[Spans]:
    numbers = sorted({number for number, _ in spans})
    return [tuple(span for number, span in spans if number == span_number) for span_number in numbers]


def _fail(message: str) -> Spans:
    raise CorpusError(message)
