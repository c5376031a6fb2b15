"""Probing data as tables: distinct passages, and instances that refer to them; and as passages of a concept."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from poolbench.contracts.tables import PASSAGES, table_from_rows
from poolbench.errors import CorpusError
from poolbench.grouping import grouped
from poolbench.statistics.folds import connected_groups, drawn_splits
from poolbench_corpora.probing.samples import PAIRS, PIECES, Note, ProbingSet, Sample, Span, choose, first_notes
from poolbench_corpora.reading import is_unlabelled, marks_missing

PROBING_PASSAGES = pa.schema(
    [
        pa.field("passage_id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("span", pa.struct([("start", pa.int32()), ("end", pa.int32())]), nullable=False),
    ]
)
PROBING_INSTANCES = pa.schema(
    [
        pa.field("instance_id", pa.string(), nullable=False),
        pa.field("first", pa.list_(pa.string()), nullable=False),  # passages whose mean is the first vector
        pa.field("second", pa.list_(pa.string()), nullable=False),  # likewise of a pair; empty for others
        pa.field("label", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("split", pa.string()),  # train, dev or test; null where the source gives none
        pa.field("group", pa.string(), nullable=False),  # stays in one fold
        pa.field("word", pa.string()),  # word type of a span
    ]
)
MAX_CHARACTERS = 20_000
"""Longest text; a passage of 500 tokens has about 3,000."""
SPLITS = ("train", "dev", "test")
#: Labels that are classes in some sets, and a missing label in others.
_DOUBTFUL = frozenset(("none", "null", "na", "n/a"))


@dataclass(frozen=True)
class ProbingData:
    """The tables of one probing set, and what was left out of it and why."""

    passages: pa.Table  # PROBING_PASSAGES, each pair of text and span once
    instances: pa.Table  # PROBING_INSTANCES
    notes: tuple[Note, ...] = ()


def passage_id(span: Span) -> str:
    """Return the id of a text with a span; other sets give the same id to the same text and span."""
    content = f"{span.start}:{span.end}:{span.text}".encode()
    return hashlib.sha256(content).hexdigest()[:20]


def passages_of(spans: Iterable[Span]) -> pa.Table:
    """Return PROBING_PASSAGES of texts with spans, each once."""
    rows = [
        {"passage_id": name, "text": span.text, "span": {"start": span.start, "end": span.end}}
        for name, span in {passage_id(span): span for span in spans}.items()
    ]
    return pa.Table.from_pylist(rows, schema=PROBING_PASSAGES)


def probing_data(definition: ProbingSet, found: Iterable[Sample | Note], seed: int = 0) -> ProbingData:
    """Return the tables of a set; samples that are wrong become notes.

    Args:
        found: Samples in order, and notes of the reader.
        seed: Other seeds choose other samples where there are more than `max_instances`.

    Raises:
        CorpusError: No sample is left; the message has the first note.
    """
    notes = list[Note]()
    samples = _whole(definition, list(_checked(definition, found, notes)), notes)
    subset = choose(samples, definition.max_instances, balanced=definition.balanced, seed=f"{definition.id}:{seed}")
    if not subset:
        first = f"; {notes[0]}" if notes else ""
        raise CorpusError(f"probing set {definition.id!r} has no instances{first}")
    notes += [*_unseen_labels(definition, subset), *_absent_names(definition, subset)]
    passages = passages_of(span for sample in subset for span in (*sample.first, *sample.second))
    return ProbingData(passages, _instances(definition, subset), first_notes(notes))


def shared_passages(data: Iterable[ProbingData]) -> pa.Table:
    """Return the passages of several sets, each once, ordered by text, so that one forward pass serves all spans."""
    tables = [part.passages for part in data]
    if not tables:
        return PROBING_PASSAGES.empty_table()
    rows = {row["passage_id"]: row for row in pa.concat_tables(tables).to_pylist()}
    ordered = sorted(rows.values(), key=lambda row: (row["text"], row["span"]["start"], row["span"]["end"]))
    return pa.Table.from_pylist(ordered, schema=PROBING_PASSAGES)


def _checked(definition: ProbingSet, found: Iterable[Sample | Note], notes: list[Note]) -> Iterator[Sample]:
    seen: set[str] = set()
    for entry in found:
        if isinstance(entry, Note):
            notes.append(entry)
            continue
        wrong = _wrong(definition, entry, seen)
        if wrong:
            notes.append(Note(entry.where, wrong))
        elif definition.classes and entry.label not in definition.classes:
            classes = ", ".join(definition.classes)
            raise CorpusError(
                f"{entry.where}: label {entry.label!r} is not a class of {definition.id}; these are {classes}"
            )
        else:
            seen.add(entry.id)
            yield entry


def _wrong(definition: ProbingSet, sample: Sample, seen: set[str]) -> str:
    """Return why a sample cannot be used, or the empty string."""
    if sample.id in seen:
        return f"id {sample.id!r} occurs twice; the second is left out"
    if not sample.first or bool(sample.second) != (definition.input in PAIRS):
        return f"the set asks for input {definition.input!r}; the sample has another number of texts or spans"
    if definition.input not in PIECES and max(len(sample.first), len(sample.second)) > 1:
        return f"several pieces of a span, in a set with input {definition.input!r}"
    if definition.task == "values" and sample.value is None:
        return f"label {sample.label!r} is not a number"
    if definition.task == "classes" and not sample.label:
        return "the label is empty"
    if sample.split not in (None, *SPLITS):
        return f"split {sample.split!r} is none of {', '.join(SPLITS)}"
    return next(filter(None, map(_wrong_span, (*sample.first, *sample.second))), "")


def _wrong_span(span: Span) -> str:
    if len(span.text) > MAX_CHARACTERS:
        return f"a text of {len(span.text):,} characters; at most {MAX_CHARACTERS:,} are read"
    if not 0 <= span.start < span.end <= len(span.text):
        return f"span {span.start}-{span.end} lies outside its text of {len(span.text)} characters"
    if not span.text[span.start : span.end].strip():
        return f"span {span.start}-{span.end} has no characters but spaces"
    try:
        span.text.encode()
    except UnicodeEncodeError:
        return "a lone surrogate, which is not valid Unicode"
    return ""


def _whole(definition: ProbingSet, samples: Sequence[Sample], notes: list[Note]) -> list[Sample]:
    """Leave out samples whose label -1 means none. Raise CorpusError if some samples have a split and others none."""
    lacking = [sample.where or sample.id for sample in samples if not sample.split]
    if lacking and len(lacking) < len(samples):
        raise CorpusError(f"probing set {definition.id!r}: {lacking[0]} has no split, and others have one; give it one")
    if definition.task != "classes" or not marks_missing(sample.label or "" for sample in samples):
        return list(samples)
    reason = "label -1 means missing beside classes from 0; for a class of its own, write a word"
    notes += [Note(sample.where, reason) for sample in samples if is_unlabelled(sample.label or "")]
    return [sample for sample in samples if not is_unlabelled(sample.label or "")]


def _absent_names(definition: ProbingSet, samples: Sequence[Sample]) -> Iterator[Note]:
    """Yield notes on groups that are missing in part, and on classes that may stand for a missing label."""
    alone = sum(not sample.group for sample in samples)
    if 0 < alone < len(samples):
        yield Note(definition.id, f"{alone} instances have no group, and others have: each is a group of its own")
    labels = Counter(sample.label or "" for sample in samples if definition.task == "classes")
    for label, count in sorted(labels.items()):
        if label.lower() in _DOUBTFUL:
            yield Note(definition.id, f"{label!r} is a class of {count} instances; leave the label empty if missing")


def _unseen_labels(definition: ProbingSet, samples: Sequence[Sample]) -> Iterator[Note]:
    """Yield a note for each label of dev or test that train lacks, if the source gives splits."""
    train = {sample.label for sample in samples if sample.split == "train"}
    others = Counter(sample.label for sample in samples if sample.split in ("dev", "test"))
    if not train or definition.task == "values":
        return
    for label, count in sorted(others.items(), key=str):
        if label not in train:
            yield Note(definition.id, f"label {label!r} of {count} dev or test instances does not occur in train")


def _instances(definition: ProbingSet, samples: Iterable[Sample]) -> pa.Table:
    rows = [
        {
            "instance_id": f"{definition.id}/{sample.id}",
            "first": [passage_id(span) for span in sample.first],
            "second": [passage_id(span) for span in sample.second],
            "label": sample.label if definition.task == "classes" else None,
            "value": sample.value if definition.task == "values" else None,
            "split": sample.split,
            "group": f"{definition.id}/{sample.group or sample.id}",
            "word": sample.word if definition.input in ("span", "span_pieces") else None,
        }
        for sample in samples
    ]
    return pa.Table.from_pylist(rows, schema=PROBING_INSTANCES)


#: Rows of the instances of each group.
_Groups = dict[str, list[dict[str, Any]]]


def seeded_groups(data: ProbingData, seed: int) -> tuple[_Groups, dict[str, list[str]]]:
    """Return the instances of each group, and the groups by the label of their first instance in a seeded order."""
    groups = grouped((row["group"], row) for row in data.instances.to_pylist())
    names = sorted(groups, key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).hexdigest())
    by_label = grouped((str(groups[name][0]["label"]), name) for name in names)
    return groups, dict(sorted(by_label.items()))


def with_splits(data: ProbingData, seed: int) -> ProbingData:
    """Return a set whose source gives no splits with drawn ones: of every ten groups one for dev, two for test.

    Groups are counted label after label, so that all splits have the labels of the whole. In an order that takes turns,
    dev would have one of two labels and test one of five, where the groups are named after their labels.
    """
    if any(data.instances["split"].to_pylist()):
        return data
    _, by_label = seeded_groups(data, seed)
    split_of = {
        name: {3: "test", 6: "dev", 8: "test"}.get(number % 10, "train")
        for number, name in enumerate(chain.from_iterable(by_label.values()))
    }
    rows = [{**row, "split": split_of[row["group"]]} for row in data.instances.to_pylist()]
    return replace(data, instances=pa.Table.from_pylist(rows, data.instances.schema))


def example_rows(data: ProbingData) -> Iterator[dict[str, object]]:
    """Yield the examples of a set: id, text, the spans that are read where these are not the whole text, and label.

    The second of a pair has `second_text` and `second_spans`.
    """
    passages = {row["passage_id"]: row for row in data.passages.to_pylist()}
    for instance in data.instances.to_pylist():
        row: dict[str, object] = {"id": instance["instance_id"]}
        for prefix, side in (("", "first"), ("second_", "second")):
            pieces = [passages[name] for name in instance[side]]
            spans = [[piece["span"]["start"], piece["span"]["end"]] for piece in pieces]
            row |= {f"{prefix}text": piece["text"] for piece in pieces[:1]}
            if pieces and spans != [[0, len(pieces[0]["text"])]]:
                row[f"{prefix}spans"] = spans
        yield row | {"label": instance["value"] if instance["label"] is None else instance["label"]}


def as_passages(definition: ProbingSet, data: ProbingData, seed: int = 0) -> dict[str, pa.Table]:
    """Return the instances of a set as PASSAGES by split, `train` and `test`; dev is left out.

    The label that comes last in alphabetical order is the positive one. Splits are those of the set, or else the ones
    that a probing task of this seed draws. A group is a document, and a matched pair if all groups are.

    Raise CorpusError for a set of another input, without two labels, or without instances of a split.
    """
    instances = data.instances.to_pylist()
    labels = sorted({row["label"] or "" for row in instances})
    groups = [row["group"] for row in instances]
    splits: Sequence[str | None] = [row["split"] for row in instances]
    if not any(splits):
        splits = drawn_splits(connected_groups(groups), seed).tolist()
    if reason := _reason_against(definition, labels, groups, splits):
        raise CorpusError(f"probing set {definition.id}: {reason}")
    members = grouped((row["group"], row["label"]) for row in instances)
    paired = all(sorted(group_labels) == labels for group_labels in members.values())
    texts = {row["passage_id"]: row["text"] for row in data.passages.to_pylist()}
    rows = [
        {
            "passage_id": row["instance_id"],
            "concept": definition.id,
            "split": split,
            "label": labels.index(row["label"]),
            "text": texts[row["first"][0]],
            "domain": definition.id,
            "doc_id": row["group"],
            "pair_id": row["group"] if paired else None,
            "source": definition.source,
            "licence": definition.licence,
        }
        for row, split in zip(instances, splits, strict=True)
    ]
    return {
        name: table_from_rows([row for row in rows if row["split"] == name], PASSAGES) for name in ("train", "test")
    }


def _reason_against(
    definition: ProbingSet, labels: Sequence[str], groups: Sequence[str], splits: Sequence[str | None]
) -> str:
    """Return why a set does not consist of whole texts with two labels in two splits; empty if it does."""
    if definition.input != "text":
        return f"its input is {definition.input}, and whole texts are read"
    if definition.task == "values":
        return "it asks for values, and labels are read"
    if len(labels) != 2:
        examples = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
        return f"it has {len(labels)} labels ({examples}), and two are read"
    if None in splits or len(set(zip(groups, splits, strict=True))) > len(set(groups)):
        return "some of its instances have no split, or a group lies in several"
    return next((f"it has no {name} instances" for name in ("train", "test") if name not in splits), "")
