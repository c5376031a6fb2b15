"""Stories as tables: rows that refer to distinct passages, marked words, and what was left out and why."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts.tables import STORIES, table_from_rows
from poolbench.errors import CorpusError, shown
from poolbench_corpora.probing.samples import Note, first_notes
from poolbench_corpora.reading import is_missing

OPEN, CLOSE = "<subject>", "</subject>"
_TAG = re.compile(f"({OPEN}|{CLOSE})", re.I)

Range = tuple[int, int]


@dataclass(frozen=True)
class Tagged:
    """A story with its marked ranges."""

    text: str  # the story without tags
    marks: tuple[Range, ...]  # character ranges of the marked words in `text`, ascending
    marks_with_tags: tuple[Range, ...]  # the same ranges in the story with its tags


def parse_tags(story: str) -> Tagged:
    """Remove the tags of a story. Return the text and the ranges that the tags marked.

    Raise CorpusError for a tag without its counterpart, a tag inside a marked range, or a marked range without a word.
    """
    text, marks, with_tags = "", [], []
    place, start = 0, None
    for piece in _TAG.split(story):
        tag = piece.lower()
        if tag == OPEN:
            if start is not None:
                raise CorpusError(f"{OPEN} at character {place} stands inside another one")
            start = place + len(piece), len(text)
        elif tag == CLOSE:
            if start is None:
                raise CorpusError(f"{CLOSE} at character {place} has no {OPEN} before it")
            if not text[start[1] :].strip():
                raise CorpusError(f"the range that ends at character {place} is marked but has no word")
            marks.append((start[1], len(text)))
            with_tags.append((start[0], place))
            start = None
        else:
            text += piece
        place += len(piece)
    if start is not None:
        raise CorpusError(f"{OPEN} at character {start[0] - len(OPEN)} has no {CLOSE} after it")
    return Tagged(text, tuple(marks), tuple(with_tags))


def tagged(text: str, marks: Iterable[Range]) -> str:
    """Return a text with tags around its marked ranges, which must be in ascending order."""
    for start, end in reversed(list(marks)):
        text = f"{text[:start]}{OPEN}{text[start:end]}{CLOSE}{text[end:]}"
    return text


Protocol = Literal["corrected", "published"]
_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32())])
STORY_PASSAGES = pa.schema(
    [
        pa.field("passage_id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("marks", pa.list_(_SPAN), nullable=False),  # character ranges of the marked words; may be empty
    ]
)
#: Columns of the story on the high side, of that on the low side, and of the subject, by preference.
FIRST, SECOND, SUBJECT = ("story1",), ("story2",), ("subject_title", "subject")
MAX_CHARACTERS = 20_000
"""Longest story; one of 200 words has about 1,200."""

#: Where a record stands, and its columns.
Record = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StoriesData:
    """Pairs of stories."""

    rows: pa.Table  # STORIES; ids of rows are their numbers in the source
    passages: pa.Table  # STORY_PASSAGES, each distinct text with its marks once
    notes: tuple[Note, ...] = ()  # what was left out, with file and line

    def first_pairs(self, count: int | None) -> StoriesData:
        """Return the stories of the first pairs of each subject, or all stories for None."""
        if count is None:
            return self
        seen: Counter[str] = Counter()
        mask = []
        for row in self.rows.to_pylist():
            seen[row["subject"]] += 1
            mask.append(seen[row["subject"]] <= count)
        rows = self.rows.filter(pa.array(mask))
        used = pa.concat_arrays([*rows["first"].chunks, *rows["second"].chunks])
        return replace(self, rows=rows, passages=self.passages.filter(pc.is_in(self.passages["passage_id"], used)))


def stories_data(source: str, records: Iterable[Record], protocol: Protocol = "corrected") -> StoriesData:
    """Return the tables of records with two stories and a subject; records that are wrong become notes.

    Args:
        source: Name of the source, for messages.
        records: Each with the columns `story1`, `story2`, and `subject_title` or `subject`.
        protocol: `corrected` removes tags and keeps their ranges; `published` keeps the text as it is, also where tags
            are wrong, and marks the words between them.

    Raises:
        CorpusError: No record is left; the message has the first note.
    """
    rows: list[dict[str, str]] = []
    passages: dict[str, dict[str, Any]] = {}
    notes: list[Note] = []
    for number, (where, record) in enumerate(records):
        try:
            subject = _value(record, SUBJECT)
            stories = [_passage(_value(record, side), protocol) for side in (FIRST, SECOND)]
            if stories[0]["text"] == stories[1]["text"]:
                raise CorpusError("both stories are the same text")
        except CorpusError as error:
            notes.append(Note(where, str(error)))
            continue
        notes += [Note(where, f"{story['note']}; the story has no marks") for story in stories if story["note"]]
        first, second = (story["passage_id"] for story in stories)
        passages |= {story["passage_id"]: story for story in stories}
        rows.append({"row_id": f"{number:06d}", "subject": subject, "first": first, "second": second})
    if not rows:
        raise CorpusError(f"{source} has no pair of stories{f'; {notes[0]}' if notes else ''}")
    if len({row["subject"] for row in rows}) == 1:
        notes.append(Note(source, f"only the subject {shown(rows[0]['subject'])}: nothing to compare it with"))
    tables = table_from_rows(rows, STORIES), table_from_rows(list(passages.values()), STORY_PASSAGES)
    return StoriesData(*tables, first_notes(notes))


def _value(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the text of the first of the columns that the record has."""
    name = next((name for name in names if record.get(name) is not None), None)
    if name is None:
        raise CorpusError(
            f"no {' or '.join(map(repr, names))}; the record has {', '.join(map(str, record)) or 'nothing'}"
        )
    value = record[name]
    if not isinstance(value, str) or is_missing(value):
        raise CorpusError(f"{name!r} is empty or no text")
    if len(value) > MAX_CHARACTERS:
        raise CorpusError(f"{name!r} has {len(value):,} characters; at most {MAX_CHARACTERS:,} are read")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise CorpusError(f"{name!r} has a lone surrogate, which is not valid Unicode") from None
    return value if names != SUBJECT else value.strip()


def _passage(story: str, protocol: Protocol) -> dict[str, Any]:
    """Return the passage of a story with a further field `note`: why it has no marks."""
    note, text = "", story
    marks: tuple[Range, ...] = ()
    try:
        parsed = parse_tags(story)
        text, marks = (parsed.text, parsed.marks) if protocol == "corrected" else (story, parsed.marks_with_tags)
    except CorpusError as error:
        if protocol == "corrected":
            raise
        note = str(error)
    if not text.strip():
        raise CorpusError("a story has tags and no text")
    content = f"{marks}:{text}".encode()
    spans = [{"start": start, "end": end} for start, end in marks]
    return {"passage_id": hashlib.sha256(content).hexdigest()[:20], "text": text, "marks": spans, "note": note}
