"""Texts and matched pairs of users' files; errors name the file and the line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolbench.errors import CorpusError
from poolbench_corpora.reading import MAX_CHARACTERS, TextFile, is_missing, name_in, records, text_in

_FIELDS = {
    "id": ("id", "passage_id"),
    "domain": ("domain",),
    "document": ("doc_id", "document"),
    "source": ("source",),
    "licence": ("licence", "license"),
}
_TEXT, _POSITIVE, _NEGATIVE = ("text", "passage"), ("positive",), ("negative",)
#: Columns that are read of a file of texts or pairs.
COLUMNS = (*_TEXT, *_POSITIVE, *_NEGATIVE, *(name for names in _FIELDS.values() for name in names))
MARKUP = re.compile(r"<!doctype html|<html[\s>]|<body[\s>]|</(?:p|div|span|td|li|a)>", re.I)


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
        CorpusError: With file and line, as `read_rows`: a missing or empty text, HTML, more than 1,000,000 characters.
    """
    return [text_of(values, where) for where, values in records(path)]


def read_pairs(path: TextFile) -> list[tuple[Text, Text]]:
    """Return the matched pairs of a file with the columns `positive` and `negative`.

    Further columns as `read_texts`; they hold for both members. Raises CorpusError likewise.
    """
    pairs = []
    for where, values in records(path):
        members = (_text(values, names, where) for names in (_POSITIVE, _NEGATIVE))
        positive, negative = (Text(where=where, text=text, **_optional(values, where)) for text in members)
        pairs.append((positive, negative))
    return pairs


def text_of(values: Mapping[str, Any], where: str) -> Text:
    """Return the text of a record. Raise CorpusError as `read_texts`."""
    return Text(where=where, text=_text(values, _TEXT, where), **_optional(values, where))


def _text(values: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    name = next((name for name in names if name in values), names[0])
    text = text_in(values, name, where)
    if is_missing(text):
        raise CorpusError(f"{where}: {name!r} is empty or missing; remove the record")
    if len(text) > MAX_CHARACTERS:
        raise CorpusError(f"{where}: {name!r} has more than {MAX_CHARACTERS:,} characters; cut it into passages")
    if MARKUP.search(text):
        raise CorpusError(f"{where}: {name!r} holds HTML; give the plain text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CorpusError(f"{where}: a lone surrogate, which is not valid Unicode; correct the text") from None
    return text.replace("\r\n", "\n").strip()


def _optional(values: Mapping[str, Any], where: str) -> dict[str, str]:
    return {
        field: next(filter(None, (name_in(values, name, where) for name in names)), "")
        for field, names in _FIELDS.items()
    }
