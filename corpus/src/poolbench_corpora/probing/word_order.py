"""A probing set without the order of its words: what a bag of words would know."""

import re
from random import Random

import pyarrow as pa

from poolbench_corpora.probing.data import ProbingData, passage_id, passages_of
from poolbench_corpora.probing.samples import Span

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
