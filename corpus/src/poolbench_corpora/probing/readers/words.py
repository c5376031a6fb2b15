"""Words of treebanks and their relations: one span per word, or one pair of spans per relation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from poolbench_corpora.probing.choice import some
from poolbench_corpora.probing.definition import ProbingSet
from poolbench_corpora.probing.readers.treebank import Sentence, read_treebank
from poolbench_corpora.probing.samples import Note, Sample, word_type

_MAX_WORDS = 60  # of a sentence


def read_words(
    definition: ProbingSet,
    archives: Path | None,
    *,
    treebank: str,
    label: Literal["upos", "xpos", "deprel"],
    sentences: int,
) -> Iterator[Sample | Note]:
    """Yield one span per word with its tag or its relation to its head, or per word and head for pairs of spans.

    Args:
        sentences: How many sentences are read: the same for all labels, so that their sets share texts.
    """
    bank = read_treebank(archives, treebank)
    yield from bank.notes()
    short = [sentence for sentence in bank.sentences if len(sentence.words) <= _MAX_WORDS]
    for sentence in some(short, sentences, treebank):
        yield from _samples(sentence, label, pairs=definition.input == "span_pair")


def _samples(sentence: Sentence, label: str, *, pairs: bool) -> Iterator[Sample]:
    for index, word in enumerate(sentence.words):
        span = sentence.span(index)
        if pairs and word.head < 0:
            continue
        yield Sample(
            f"{sentence.id}/{index + 1}",
            (span,),
            (sentence.span(word.head),) if pairs else (),
            label=getattr(word, label),
            split=sentence.split,
            group=sentence.id,
            word=word_type(span),
            where=sentence.id,
        )
