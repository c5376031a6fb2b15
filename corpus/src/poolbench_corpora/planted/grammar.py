"""Fill sentence patterns with words, and record the positions of the markers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, Literal, TypeVar

import yaml

Use = Literal["corpus", "lm", "scorer"]


@dataclass(frozen=True)
class Domain:
    """A subject area; `slots` maps the name of a slot to the words or phrases that may fill it."""

    name: str
    slots: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Lexicon:
    """The words and templates of one use, without the markers of the concepts."""

    use: Use
    templates: Mapping[str, tuple[str, ...]]  # for the slots `clause`, `subj`, `obj` and `vp`
    domains: tuple[Domain, ...]  # with the slots `role`, `thing`, `adj`, `place`, `past`, `base`, `name`, `time`


def load_yaml(*path: str) -> Any:
    """Return the content of a YAML file of this package."""
    return yaml.safe_load(files(__package__).joinpath(*path).read_text("utf-8"))


@cache
def load_lexicon(use: Use) -> Lexicon:
    """Return the lexicon of a use."""
    raw = load_yaml("lexicons", f"{use}.yaml")
    common = {"name": tuple(raw["names"]), "time": tuple(raw["times"])}
    domains = tuple(Domain(name, {**common, **_slots(words)}) for name, words in raw["domains"].items())
    templates = {slot: tuple(options) for slot, options in raw["templates"].items()}
    return Lexicon(use, templates, domains)


def _slots(words: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    slots = {slot: tuple(options) for slot, options in words.items() if slot != "verb"}
    forms = [verb.split() for verb in words["verb"]]  # "prune pruned": base form, past form
    return slots | {"base": tuple(base for base, _ in forms), "past": tuple(past for _, past in forms)}


Span = tuple[int, int]
T = TypeVar("T")

_SLOT = re.compile(r"\{(\w+?)\d*\}")
_ARTICLE = re.compile(r"\b([Aa])(?= <?[aeiouAEIOU])")
_SENTENCE_START = re.compile(r"(?:^|(?<=[.!?] ))<?[a-z]")


@dataclass(frozen=True)
class Sentence:
    """A text, with the character ranges of its markers."""

    text: str
    signal: tuple[Span, ...] = ()


class Writer:
    """Write the sentences of one passage; use all words of a slot, in random order, before repeating one."""

    def __init__(self, lexicon: Lexicon, domain: Domain, rng: Random, words: Mapping[str, tuple[str, ...]]) -> None:
        self._templates = lexicon.templates
        self._words = {**domain.slots, **words}
        self._decks: dict[str, list[Any]] = {}
        self._rng = rng

    def sentences(self, *patterns: str) -> list[Sentence]:
        """Return the patterns as sentences. Slots of the same name get the same words in all sentences.

        In `"{clause} <because> {clause2}."` the digit makes a second slot of the kind `clause`.
        """
        bindings: dict[str, str] = {}
        return [mark(self._fill(pattern, bindings)) for pattern in patterns]

    def deal(self, slot: str, options: Sequence[T]) -> T:
        """Return the next of the options in shuffled order."""
        deck = self._decks.setdefault(slot, [])
        if not deck:
            deck.extend(options)
            self._rng.shuffle(deck)
        return deck.pop()

    def _fill(self, pattern: str, bindings: dict[str, str]) -> str:
        def filling(match: re.Match[str]) -> str:
            slot = match.group(0)
            if slot not in bindings:
                bindings[slot] = self._draw(match.group(1))
            return bindings[slot]

        return _SLOT.sub(filling, pattern)

    def _draw(self, slot: str) -> str:
        if slot in NUMBERS:
            return NUMBERS[slot](self._rng)
        if slot in self._templates:
            return self._fill(self.deal(slot, self._templates[slot]), {})
        return self._fill(self.deal(slot, self._words[slot]), {})


NUMBERS = {
    "int": lambda rng: str(rng.randint(2, 980)),
    "decimal": lambda rng: f"{rng.randint(1, 99)}.{rng.randint(1, 9)}",
    "year": lambda rng: str(rng.randint(1890, 2020)),
}
"""Slots for numbers."""


def mark(filled: str) -> Sentence:
    """Remove the marker brackets, record their ranges, and correct articles and capitals."""
    filled = _ARTICLE.sub(r"\1n", filled)
    filled = _SENTENCE_START.sub(lambda match: match.group(0).upper(), filled)
    text, signal, start = "", [], 0
    for piece in re.split(r"([<>])", filled):
        if piece == "<":
            start = len(text)
        elif piece == ">":
            signal.append((start, len(text)))
        else:
            text += piece
    return Sentence(text, tuple(signal))


def join(sentences: list[Sentence]) -> Sentence:
    """Return the sentences as one passage, with ranges relative to its start."""
    signal, offset = [], 0
    for sentence in sentences:
        signal += [(start + offset, end + offset) for start, end in sentence.signal]
        offset += len(sentence.text) + 1
    return Sentence(" ".join(sentence.text for sentence in sentences), tuple(signal))
