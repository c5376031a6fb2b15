"""What a run reads of a set: its controls, splits where a source gives none, and a share of train."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from random import Random
from typing import Any

import pyarrow as pa

from poolbench_corpora.probing import ProbingData, Span, passage_id, passages_of
from poolbench_driver.suites.holmes.config import HolmesConfig

WORD_ORDER, RANDOM_WEIGHTS = "word_order", "random_weights"
_SIDES = ("first", "second")
_WORD = re.compile(r"\S+")


def without_order(data: ProbingData, seed: int) -> ProbingData:
    """Return a set whose texts have their words in a random order, which depends on the seed and the text alone.

    A span follows its words. Where these no longer stand together, it has several pieces, and its vector is the mean of
    theirs. Instances, labels and splits stay.
    """
    moved = {
        row["passage_id"]: moved_span(Span(row["text"], row["span"]["start"], row["span"]["end"]), seed)
        for row in data.passages.to_pylist()
    }
    passages = passages_of(piece for pieces in moved.values() for piece in pieces)
    names = {name: [passage_id(piece) for piece in pieces] for name, pieces in moved.items()}
    instances = [
        {**row, **{side: list(dict.fromkeys(new for old in row[side] for new in names[old])) for side in _SIDES}}
        for row in data.instances.to_pylist()
    ]
    return ProbingData(passages, pa.Table.from_pylist(instances, data.instances.schema), data.notes)


def moved_span(span: Span, seed: int) -> list[Span]:
    """Return the pieces of a span in its text with shuffled words; words are what lies between spaces."""
    words = list(_WORD.finditer(span.text))
    order = list(range(len(words)))
    Random(f"{seed}:{span.text}").shuffle(order)
    text = " ".join(words[number].group() for number in order)
    pieces: list[Span] = []
    place, is_open = 0, False
    for number in order:
        start, end = words[number].span()
        first, last = max(span.start, start), min(span.end, end)
        if first < last:
            begin, stop = place + first - start, place + last - start
            joined = is_open and first == start
            pieces = (
                [*pieces[:-1], Span(text, pieces[-1].start, stop)] if joined else [*pieces, Span(text, begin, stop)]
            )
        is_open = first < last == end
        place += end - start + 1
    return pieces


def thinned(data: ProbingData, config: HolmesConfig) -> ProbingData:
    """Return the instances that a run asks for, all with a split.

    Where a source gives no splits, they are drawn here, the same with and without `flash`: 70, 10 and 20 % of the
    groups. Of train a share of the groups is kept, and of dev and test at most so many instances. Groups are taken in a
    seeded order that takes turns between labels, so a smaller share is part of a larger one.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in data.instances.to_pylist():
        groups.setdefault(row["group"], []).append(row)
    by_label: dict[str, list[str]] = {}
    for name in sorted(groups, key=lambda group: hashlib.sha256(f"{config.seed}:{group}".encode()).hexdigest()):
        by_label.setdefault(str(groups[name][0]["label"]), []).append(name)
    by_label = dict(sorted(by_label.items()))
    place = {name: (n + 0.5) / len(names) for names in by_label.values() for n, name in enumerate(names)}
    ordered = sorted(place, key=lambda name: (place[name], name))
    if all(row["split"] is None for rows in groups.values() for row in rows):
        _draw_splits(groups, by_label)
    instances = list[dict[str, Any]]()
    for split in ("train", "dev", "test"):
        split_rows = [groups[name] for name in ordered if groups[name][0]["split"] == split]
        if split == "train":
            sample = split_rows[: max(2, round((config.flash or 1.0) * len(split_rows)))]
        else:
            sizes = accumulate(map(len, split_rows))
            sample = [rows for rows, size in zip(split_rows, sizes, strict=True) if size <= (config.flash_eval or size)]
        instances += [row for rows in sample for row in rows]
    instances += [row for rows in groups.values() for row in rows if rows[0]["split"] is None]
    used = {name for row in instances for name in (*row["first"], *row["second"])}
    passages = [row for row in data.passages.to_pylist() if row["passage_id"] in used]
    return ProbingData(
        pa.Table.from_pylist(passages, data.passages.schema),
        pa.Table.from_pylist(instances, data.instances.schema),
        data.notes,
    )


def _draw_splits(groups: Mapping[str, list[dict[str, Any]]], by_label: Mapping[str, Sequence[str]]) -> None:
    """Give one of every ten groups to dev, two to test, and seven to train.

    Groups are counted label after label, so that all splits have the labels of the whole. In the order that takes
    turns, dev would have one of two labels and test one of five, where the groups are named after their labels.
    """
    for number, name in enumerate(chain.from_iterable(by_label.values())):
        split = {3: "test", 6: "dev", 8: "test"}.get(number % 10, "train")
        for row in groups[name]:
            row["split"] = split
