"""Planted stories: the two sides of a row have the same sentences, but for marked words that say high or low."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from random import Random

import yaml

from poolbench_corpora.planted.grammar import Sentence, Writer, join
from poolbench_corpora.planted.lexicon import load_lexicon
from poolbench_corpora.stories.data import Record
from poolbench_corpora.stories.tags import tagged

REVISION = "stories-1"
"""Changes with every change of patterns or grammar; part of the random key of every row."""
NUM_ROWS = 4
"""Rows of a subject, each in a domain of its own."""
#: Marked sentences of a story, drawn from the patterns of its subject, and sentences that both sides have. If all rows
#: of a subject had the same marked words, any features, even random ones, would hold on all of them.
_NUM_MARKED, _NUM_PLAIN = 2, 6


@cache
def planted_subjects() -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Return by subject the patterns of marked sentences, each with its high and its low form."""
    raw = yaml.safe_load(files(__package__).joinpath("planted.yaml").read_text("utf-8"))
    return {subject: tuple((high, low) for high, low in patterns) for subject, patterns in raw.items()}


def planted_stories(seed: int) -> Iterator[Record]:
    """Yield a record per row, with tags around the marked words; the same seed gives the same text on every machine."""
    lexicon = load_lexicon("corpus")
    for subject, patterns in planted_subjects().items():
        for row in range(NUM_ROWS):
            rng = Random(f"{REVISION}:{seed}:{subject}:{row}")
            writer = Writer(lexicon, lexicon.domains[row % len(lexicon.domains)], rng, {})
            forms = [*rng.sample(patterns, _NUM_MARKED), *[("{clause}.", "{clause}.")] * _NUM_PLAIN]
            rng.shuffle(forms)
            high, low = zip(*(writer.sentences(*form) for form in forms), strict=True)
            stories = {"story1": _with_tags(join(list(high))), "story2": _with_tags(join(list(low)))}
            yield f"planted stories, {subject}, row {row}", {"subject": subject, **stories}


def _with_tags(story: Sentence) -> str:
    return tagged(story.text, story.signal)
