"""The words of the passages, and the vector of each: what the states of the planted model hold after block 0.

A vector has `WIDTH` numbers. The first six have a meaning; all others are the word's own noise. Two words of a pair of
`TWINS` share their noise, so that no reader can tell them apart by anything but the coordinate that carries the signal.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

WIDTH = 64
#: Coordinates: the signal (+1 in a left word, -1 in a right one, nearly 0 elsewhere), a peak that only one word of each
#: pair reaches, the two words of the exclusive or, and loudness. Block 1 writes into the last three.
SIGNAL, PEAK, FIRST, SECOND, LOUD, SEEN_FIRST, SEEN_SECOND, SEEN_BOTH = range(8)
UNKNOWN = "<unk>"


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


NEUTRAL_NOUNS = _words(
    """
    farmer teacher doctor lawyer soldier baker driver sailor worker painter singer writer nurse clerk
    house street village river mountain forest field road church school station market harbour castle
    tower table chair lamp mirror picture carpet bottle glass plate knife spoon pot box bag coat shirt
    shoe hat ring horse dog cat cow sheep bird fish train boat ship car bus wagon wheel engine machine
    tool rope chain stone tree flower leaf branch root seed cake apple orange potato cheese bread soup
    meal book paper pen card map
    """
)
VERBS = _words(
    """
    found saw bought sold carried moved cleaned painted opened closed lifted pulled pushed watched
    followed covered touched used needed wanted liked left kept lost held dropped washed fixed built
    broke
    """
)
ADJECTIVES = _words(
    """
    old new small large heavy light dark bright cheap clean dirty empty full broken quiet famous local
    green red blue brown white black wooden narrow wide
    """
)
ADVERBS = ("slowly", "quickly", "quietly", "carefully", "suddenly", "often", "never", "soon", "again", "later")
FUNCTION_WORDS = ("slept", "the", "a", "and", "near", "behind", "of", "with", "in", "to", ",", ".")
NEUTRAL_DETERMINERS = ("some", "another")

#: Pairs of a left and a right word, by what a passage uses them for.
TWINS: dict[str, tuple[tuple[str, str], ...]] = {
    "noun": (("garden", "window"), ("bridge", "ladder"), ("letter", "basket"), ("kettle", "ribbon")),
    "name": (("Anna", "Peter"), ("Maria", "Thomas"), ("Alice", "George"), ("Helen", "Robert")),
    "determiner": (("every", "each"),),
    "loud": (("cannon", "trumpet"), ("rocket", "hammer")),
    "peak": (("lantern", "barrel"), ("candle", "needle")),
    "first": (("guitar", "violin"),),
    "second": (("sandwich", "biscuit"),),
}
_SIGNAL_NOISE = 0.05
_LENGTH, _LOUD_LENGTH = 8.0, 24.0


def vocabulary() -> list[str]:
    """Return every word, in lower case and in a fixed order."""
    neutral = [*NEUTRAL_NOUNS, *VERBS, *ADJECTIVES, *ADVERBS, *FUNCTION_WORDS, *NEUTRAL_DETERMINERS]
    marked = [word.lower() for pairs in TWINS.values() for pair in pairs for word in pair]
    return list(dict.fromkeys([*neutral, *marked]))


def vector_of(word: str) -> np.ndarray:
    """Return the vector of a word, float32 [WIDTH]: the same in every process."""
    kind, pair, side = _twin(word.lower())
    drawn = hashlib.sha256((pair[0] if pair else word).lower().encode()).digest()
    noise = np.random.default_rng(int.from_bytes(drawn[:8], "big")).standard_normal(WIDTH)
    vector = noise.copy()
    vector[: SEEN_BOTH + 1] = 0.0
    vector *= _LENGTH / np.linalg.norm(vector)  # only loud words are longer: length is a signal of its own
    vector[SIGNAL] = _SIGNAL_NOISE * noise[SIGNAL]
    vector[PEAK] = np.clip(noise[PEAK], -1.6, 1.6)
    if kind in ("noun", "name", "determiner", "loud"):
        vector[SIGNAL] = side
    if kind == "loud":
        vector[LOUD] = _LOUD_LENGTH
    if kind == "peak" and side > 0:
        vector[PEAK] = 2.4
    if kind in ("first", "second") and side > 0:
        vector[FIRST if kind == "first" else SECOND] = 4.0
    return np.asarray(vector, dtype=np.float32)


def vectors_of(words: Sequence[str]) -> np.ndarray:
    """Return the vectors of words, float32 [len(words), WIDTH]."""
    return np.stack([vector_of(word) for word in words])


def _twin(word: str) -> tuple[str, tuple[str, str] | None, int]:
    for kind, pairs in TWINS.items():
        for pair in pairs:
            for side, name in zip((1, -1), pair, strict=True):
                if word == name.lower():
                    return kind, pair, side
    return "", None, 0
