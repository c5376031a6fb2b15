"""Planted sets: sentences that a grammar writes from patterns, with marked words."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from pydantic import Field, ValidationError

from poolbench.config import StrictModel
from poolbench.errors import ConfigError
from poolbench_corpora.planted.grammar import Sentence, Writer, load_lexicon
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, Span, whole, word_type

RANDOM = "random"
"""The label of a pattern that gets the label 0 in a random half of the groups, and 1 in the others."""


class Pattern(StrictModel):
    """A sentence with slots in braces and marked words between `<` and `>`.

    Of a span each marked word is an instance, of a span of pieces all of them are one, of a pair of spans both are one.
    """

    text: str
    second: str = ""  # of a pair of texts
    label: str | None = None
    labels: tuple[str, ...] = ()  # one per marked word
    value: float | None = None
    shift: bool = False  # whether two neighbouring words are exchanged


class Patterns(StrictModel):
    """Parameters of the reader: patterns of one group share the words of slots with the same name."""

    groups: int = Field(ge=1, le=10_000)
    patterns: tuple[tuple[Pattern, ...], ...] = Field(min_length=1)  # taken in turn, one tuple per group
    words: Mapping[str, tuple[str, ...]] = {}  # further slots


def read_grammar(definition: ProbingSet, **parameters: Any) -> Iterator[Sample | Note]:
    """Yield the samples of each group. Parameters are those of `Patterns`; ConfigError is raised for others."""
    try:
        settings = Patterns.model_validate(parameters)
    except ValidationError as error:
        raise ConfigError(f"probing set {definition.id!r}: {error}") from None
    lexicon = load_lexicon("corpus")
    coins = [str(number % 2) for number in range(settings.groups)]
    Random(f"{definition.revision}:{definition.id}").shuffle(coins)
    for number, coin in enumerate(coins):
        rng = Random(f"{definition.revision}:{definition.id}:{number}")
        domain = lexicon.domains[number % len(lexicon.domains)]
        words = {**settings.words, "roles": tuple(map(plural, domain.slots["role"]))}
        patterns = settings.patterns[number // len(lexicon.domains) % len(settings.patterns)]
        yield from _group(
            definition, patterns, Writer(lexicon, domain, rng, words), f"{number:04d}", rng.random(), coin
        )


def _group(
    definition: ProbingSet, patterns: Sequence[Pattern], writer: Writer, group: str, shift: float, coin: str
) -> Iterator[Sample]:
    """Yield the samples of one group; `shift` is the place of an exchange of words, `coin` the random label."""
    texts = [text for pattern in patterns for text in (pattern.text, pattern.second)]
    written = writer.sentences(*texts)
    for number, pattern in enumerate(patterns):
        sentence, second = written[2 * number], written[2 * number + 1].text
        text = exchange(sentence.text, shift) if pattern.shift else sentence.text
        for place, (first, pair, label) in enumerate(_parts(definition, pattern, sentence, text, second)):
            yield Sample(
                f"{group}-{number}-{place}",
                first,
                pair,
                label=coin if label == RANDOM else label,
                value=pattern.value,
                group=group,
                word=word_type(*first),
                where=f"{definition.id}, group {group}",
            )


Part = tuple[tuple[Span, ...], tuple[Span, ...], str | None]


def _parts(definition: ProbingSet, pattern: Pattern, sentence: Sentence, text: str, second: str) -> list[Part]:
    spans = [Span(text, start, end) for start, end in sentence.signal]
    labels = pattern.labels or (pattern.label,) * len(spans)
    if definition.input == "span":
        return [((span,), (), label) for span, label in zip(spans, labels, strict=True)]
    if definition.input == "span_pieces":
        return [(tuple(spans), (), pattern.label)]
    if definition.input == "span_pair":
        return [((spans[0],), (spans[1],), pattern.label)]
    return [(whole(text), whole(second) if second else (), pattern.label)]


def exchange(text: str, place: float) -> str:
    """Return a sentence with two neighbouring, different words exchanged; neither the first nor the last one.

    Args:
        place: Where, as a share of the places that can be chosen.
    """
    words = text.split(" ")
    places = [index for index in range(1, len(words) - 2) if words[index] != words[index + 1]]
    index = places[int(place * len(places))]
    words[index : index + 2] = words[index + 1], words[index]
    return " ".join(words)


def plural(noun: str) -> str:
    """Return the plural of a noun of the lexicon."""
    if noun.endswith("man"):
        return f"{noun[:-3]}men"
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
