"""The sentences that planted passages are made of: words with the places where a marker may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from poolbench_driver.suites.planted.words import ADJECTIVES, ADVERBS, NEUTRAL_DETERMINERS, NEUTRAL_NOUNS, VERBS

#: A sentence is made by drawing a word for each name in capitals. SUBJECT, OBJECT, CONJUNCT and OBLIQUE are nouns.
#: Only the last token of a passage may be a noun, so every template but `ENDING` ends in a full stop.
TEMPLATES = (
    "the ADJECTIVE SUBJECT VERB the OBJECT .",
    "the SUBJECT VERB DETERMINER ADJECTIVE OBJECT near the OBLIQUE .",
    "the SUBJECT and the CONJUNCT VERB the ADJECTIVE OBJECT .",
    "the SUBJECT ADVERB VERB the OBJECT behind the OBLIQUE .",
    "a SUBJECT VERB the OBJECT and DETERMINER CONJUNCT .",
    "the SUBJECT VERB the OBJECT with the OBLIQUE .",
)
LONG = (
    "the ADJECTIVE SUBJECT VERB the ADJECTIVE OBJECT of DETERMINER ADJECTIVE OBLIQUE near the ADJECTIVE OBLIQUE behind "
    "the ADJECTIVE OBLIQUE of the OBLIQUE ."
)
SHORT = "the SUBJECT slept ."
WITH_NAME = "the SUBJECT VERB the OBJECT with NAME near the OBLIQUE ."
ENDING = "the SUBJECT VERB the OBJECT near the OBLIQUE"
NOUN_PLACES = ("SUBJECT", "OBJECT", "CONJUNCT", "OBLIQUE")
_REDRAWN = ("ADJECTIVE", "VERB", "ADVERB")
_WORDS = {  # as arrays: a draw from a tuple makes one each time
    "ADJECTIVE": np.array(ADJECTIVES),
    "VERB": np.array(VERBS),
    "ADVERB": np.array(ADVERBS),
    "DETERMINER": np.array(NEUTRAL_DETERMINERS),
    **dict.fromkeys(NOUN_PLACES, np.array(NEUTRAL_NOUNS)),
}


@dataclass(frozen=True)
class Token:
    """One word of a passage."""

    word: str
    place: str  # its name in the template; "" for a fixed word
    sentence: int
    length: int  # tokens of its sentence


def write(templates: Sequence[str], rng: np.random.Generator) -> list[Token]:
    """Return the tokens of a passage with one sentence per template; a NAME is left to the caller."""
    tokens = []
    for number, template in enumerate(templates):
        parts = template.split()
        for part in parts:
            place = part if part.isupper() else ""
            word = str(rng.choice(_WORDS[part])) if part in _WORDS else part
            tokens.append(Token(word, place, number, len(parts)))
    return tokens


def redrawn(tokens: Sequence[Token], rng: np.random.Generator) -> list[Token]:
    """Return the same sentences with other verbs, adjectives and adverbs.

    The two passages of a pair must differ in more than the signal: where they have the same words, a strategy that
    cannot read it has the same vector twice, and its probe nothing to be fitted to.
    """
    return [
        replace(token, word=str(rng.choice(_WORDS[token.place]))) if token.place in _REDRAWN else token
        for token in tokens
    ]


def read(words: Sequence[str]) -> str:
    """Return words as text: a capital at the start of a sentence, no space before a full stop."""
    text, starts = "", True
    for word in words:
        text += "" if word == "." or not text else " "
        text += word[:1].upper() + word[1:] if starts else word
        starts = word == "."
    return text
