"""Turn the records of a dataset into documents: the text is cleaned, and named by its contents."""

import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

from poolbench.errors import CorpusError
from poolbench_corpora.hub.catalog import Dataset
from poolbench_corpora.hub.records import Record
from poolbench_corpora.own.files import MARKUP
from poolbench_corpora.partition import HUB
from poolbench_corpora.reading import MAX_CHARACTERS, is_missing
from poolbench_corpora.real.documents import Document
from poolbench_corpora.yields import Yield

UNKNOWN_LICENCE = "unknown"
_BREAK = re.compile(r"<br\s*/?>", re.I)
#: Replacement and control characters, lone surrogates, and UTF-8 that was read as Latin-1.
_WRONG_ENCODING = re.compile("[\ufffd\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]|\u00e2\u20ac|\u00c3[\u0080-\u00bf]")


def documents_of(
    name: str, dataset: Dataset, domain: str, columns: tuple[str, ...], records: Iterator[Record], found: Yield
) -> Iterator[Document]:
    """Yield a document per record that has usable text; count the others.

    The id of a document is a hash of its text: the same text is in the same split however it is read.

    Args:
        columns: Columns with labels, which the documents keep; `a|b` is the first of two that there is.

    Raises:
        CorpusError: A record lacks the column of the text or of a label.
    """
    for where, values in records:
        found.read(dataset.name)
        text = clean(_text(values, dataset, where))
        if rule := _wrong(text):
            found.drop(rule, text)
            continue
        labels = tuple((column, str(_column(values, column.split("|"), where))) for column in columns)
        digest = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]
        licence = dataset.licence or UNKNOWN_LICENCE
        yield Document(f"{HUB}{name}/{digest}", dataset.id, licence, domain, text, labels)


def clean(text: str) -> str:
    """Return a text with line ends of one kind, without entities and line breaks of HTML."""
    text = _BREAK.sub("\n", html.unescape(text) if "&" in text else text)
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _wrong(text: str) -> str | None:
    """Return the rule that drops a text, None if none does."""
    if not text:
        return "empty"
    if len(text) > MAX_CHARACTERS:
        return "long_document"
    if _WRONG_ENCODING.search(text):
        return "encoding"
    return "markup" if MARKUP.search(text) else None


def _text(values: Mapping[str, Any], dataset: Dataset, where: str) -> str:
    text = _joined(_column(values, dataset.text, where))
    if dataset.title is None:
        return text
    title = _joined(_column(values, (dataset.title,), where))
    return f"{title}\n\n{text}" if title else text


def _joined(value: Any) -> str:
    """Return a text, or parts of a text, as one; the empty string where it is missing or no text."""
    parts = value if isinstance(value, list) else [value]
    return "\n\n".join(part for part in parts if isinstance(part, str) and not is_missing(part))


def _column(values: Mapping[str, Any], names: tuple[str, ...] | list[str], where: str) -> Any:
    """Return the first column that there is; a dot goes into a nested record."""
    for name in names:
        inside: Any = values
        for part in name.split("."):
            inside = inside.get(part, _MISSING) if isinstance(inside, Mapping) else _MISSING
        if inside is not _MISSING:
            return inside
    here = ", ".join(map(str, values)) or "nothing"
    raise CorpusError(f"{where}: no column {' or '.join(map(repr, names))}; there are {here}")


_MISSING = object()
