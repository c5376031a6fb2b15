"""Write the passages of a signal, in pairs with the same sentences and nouns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import PASSAGES
from poolbench.errors import InputError
from poolbench_corpora.places.words import ADJECTIVES, ADVERBS, NEUTRAL_DETERMINERS, NEUTRAL_NOUNS, TWINS, VERBS

WINDOW = 16  # tokens of the windows that the strategies W1, W2 and W3 read

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


NUM_PAIRS = 120
NUM_TEST_PAIRS = 24
LENGTHS = range(66, 111)  # tokens
_MAX_TRIES = 2000
_MIN_LONG = 20


@dataclass(frozen=True)
class Place:
    """A position in a passage, and the word that it has in the positive and in the negative passage."""

    index: int
    positive: str
    negative: str


Places = list[Place] | None  # None: this draw has no such places
Find = Callable[[list[Token], int, np.random.Generator], Places]


def concept_id(signal: str) -> str:
    """Return the id of the concept that the passages of a signal belong to."""
    return f"planted_{signal}"


def planted_passages(signal: str, seed: int = 0) -> pa.Table:
    """Return PASSAGES of a signal: `NUM_PAIRS` pairs, of which the last `NUM_TEST_PAIRS` are the test split.

    Raises:
        InputError: There is no such signal.
    """
    if signal not in TEXTS:
        raise InputError(f"no planted signal {signal!r} has passages; there are {', '.join(TEXTS)}")
    rows = []
    for pair in range(NUM_PAIRS):
        rng = np.random.default_rng([seed, TEXTS.index(signal), pair])
        tokens, places = _drawn(signal, pair, rng)
        rows.append(_row(concept_id(signal), pair, 1, tokens, places))
        rows.append(_row(concept_id(signal), pair, 0, redrawn(tokens, rng), places))
    return pa.Table.from_pylist(rows, schema=PASSAGES)


def _drawn(signal: str, pair: int, rng: np.random.Generator) -> tuple[list[Token], list[Place]]:
    for _ in range(_MAX_TRIES):
        templates = [str(rng.choice(TEMPLATES)) for _ in range(int(rng.integers(7, 11)))]
        if signal == "sentence":
            templates[2:5] = [LONG, SHORT] if rng.random() < 0.5 else [SHORT, LONG]
        if signal == "entity":
            templates[int(rng.integers(len(templates)))] = WITH_NAME
        if signal == "end":
            templates[-1] = ENDING
        tokens = write(templates, rng)
        if len(tokens) in LENGTHS and (places := _FIND[signal](tokens, pair, rng)) is not None:
            return tokens, places
    raise InputError(f"no passage for the planted signal {signal!r} in {_MAX_TRIES} draws")


def _row(concept: str, pair: int, label: int, tokens: Sequence[Token], places: Sequence[Place]) -> dict[str, object]:
    words = [token.word for token in tokens]
    for place in places:
        words[place.index] = place.positive if label else place.negative
    return {
        "passage_id": f"{concept}-{pair}-{'pos' if label else 'neg'}",
        "concept": concept,
        "split": "test" if pair >= NUM_PAIRS - NUM_TEST_PAIRS else "train",
        "label": label,
        "text": read(words),
        "domain": "planted",
        "doc_id": f"planted-suite/{concept}-{pair}",
        "pair_id": f"{concept}-{pair}",
        "source": "planted-suite",
        "licence": "Apache-2.0",
        "token_count": len(words),
        "signal": [],
    }


def _of_places(tokens: Sequence[Token], *places: str) -> list[int]:
    """Return the positions of the tokens that stand at some places of the templates: by default of all nouns."""
    return [index for index, token in enumerate(tokens) if token.place in (places or NOUN_PLACES)]


def _exchanged(
    place: int, counterpart: int, rng: np.random.Generator, kinds: tuple[str, str] = ("noun", "noun")
) -> Places:
    """Return the two places of a left and a right word, which the negative passage has the other way round."""
    pairs = [_one_twin(kind, rng) for kind in kinds]
    if kinds[0] == kinds[1]:
        pairs[1] = pairs[0]
    (left, right), (other_left, other_right) = pairs
    return [Place(place, left, right), Place(counterpart, other_right, other_left)]


def _one_of(choices: Sequence[int], rng: np.random.Generator) -> int:
    return int(choices[int(rng.integers(len(choices)))])


def _windows(num_tokens: int) -> dict[str, range]:
    start = (num_tokens - WINDOW) // 2
    return {
        "start": range(WINDOW),
        "middle": range(start, start + WINDOW),
        "end": range(num_tokens - WINDOW, num_tokens),
    }


def _outside(tokens: Sequence[Token]) -> list[int]:
    inside = {index for window in _windows(len(tokens)).values() for index in window}
    return [index for index in _of_places(tokens) if index not in inside]


def _in_window(tokens: Sequence[Token], positions: Sequence[int], rng: np.random.Generator) -> Places:
    nouns, outside = [index for index in _of_places(tokens) if index in positions], _outside(tokens)
    if not nouns or not outside:
        return None
    return _exchanged(_one_of(nouns, rng), _one_of(outside, rng), rng)


def _dense(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    marked = [_one_twin("noun", rng) for _ in _of_places(tokens)[::3]]
    return [Place(index, *twins) for index, twins in zip(_of_places(tokens)[::3], marked, strict=True)]


def _one_twin(kind: str, rng: np.random.Generator) -> tuple[str, str]:
    return TWINS[kind][int(rng.integers(len(TWINS[kind])))]


def _sparse(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    return [Place(_one_of(_of_places(tokens), rng), *_one_twin("peak", rng))]


def _start(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    return _in_window(tokens, [WINDOW - 1] if pair % 2 else range(WINDOW - 1), rng)


def _middle(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    window = _windows(len(tokens))["middle"]
    ends = [window[0] if pair % 4 == 1 else window[-1]]
    return _in_window(tokens, ends if pair % 2 else window[1:-1], rng)


def _end(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    return _in_window(tokens, [len(tokens) - 1], rng)


def _edge(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    return _in_window(tokens, [len(tokens) - WINDOW], rng)


def _sentence(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    nouns = _of_places(tokens)
    short = [index for index in nouns if tokens[index].length == len(SHORT.split())]
    long = [index for index in nouns if tokens[index].length >= _MIN_LONG]
    return _exchanged(_one_of(short, rng), _one_of(long, rng), rng)


def _with_determiner(kind: str, places: tuple[str, ...]) -> Find:
    def find(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
        candidates, determiners = _of_places(tokens, *places), _of_places(tokens, "DETERMINER")
        if not candidates or not determiners:
            return None
        return _exchanged(_one_of(candidates, rng), _one_of(determiners, rng), rng, (kind, "determiner"))

    return find


def _syntax(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    conjuncts = [i for i in _of_places(tokens, "CONJUNCT") if tokens[i - 2].word == "and"]
    objects = _of_places(tokens, "OBJECT")
    return _exchanged(_one_of(conjuncts, rng), _one_of(objects, rng), rng) if conjuncts and objects else None


def _loud(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    place, counterpart = rng.choice(_of_places(tokens), size=2, replace=False)
    return _exchanged(int(place), int(counterpart), rng, ("loud", "noun"))


def _xor(tokens: list[Token], pair: int, rng: np.random.Generator) -> Places:
    """One word is the same in both passages of a pair; the other is there in one of them."""
    nouns = [index for index in _of_places(tokens) if index < len(tokens) - 2 * WINDOW]
    first, second = rng.choice(nouns, size=2, replace=False)
    (here, away), (other_here, other_away) = TWINS["first"][0], TWINS["second"][0]
    if pair % 2:
        return [Place(int(first), here, here), Place(int(second), other_away, other_here)]
    return [Place(int(first), away, away), Place(int(second), other_here, other_away)]


_FIND: dict[str, Find] = {
    "dense": _dense,
    "sparse": _sparse,
    "start": _start,
    "middle": _middle,
    "end": _end,
    "edge": _edge,
    "sentence": _sentence,
    "entity": _with_determiner("name", ("NAME",)),
    "content": _with_determiner("noun", NOUN_PLACES),
    "syntax": _syntax,
    "loud": _loud,
    "xor": _xor,
}

#: The signals that have passages, in the order that numbers them for their seeds.
TEXTS: tuple[str, ...] = tuple(_FIND)
