"""Planted documents on real carriers: short sentences of the `lm` texts, with a concept's markers added.

The planted grammar has few content words, so a model that has met markers only there continues a concept only
among those words. Here the same markers stand among the whole vocabulary: a document takes plain sentences of one
real document in their order and adds one concept's markers to many of them, or none.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from poolbench_corpora.planted.signals import load_signal, planted_concepts

MIN_WORDS, MAX_WORDS = 4, 22
DOCUMENT_SENTENCES = (6, 14)
MARKED_SHARE = 0.9
#: Patterns that one document draws from. Few, and nearly every sentence marked: greedy decoding writes a marker
#: only where one marker is likelier than every plain beginning, however likely markers are together.
MAX_PATTERNS = 2

#: Concepts of the default run, which get more documents; negation needs its own rule and occurs only here.
EMPHASISED = ("causation", "contrast", "conditionality", "negation_density", "hedging") * 2
NUM_PLAIN = 5

#: First words that go into lower case after a connective; others may be names.
_STARTERS = frozenset(
    re.findall(
        r"\w+",
        "The A An He She It They We You This That These Those His Her Its Their My Our There In On At By From With "
        "One Some Many All Each Every Another Both Several Most After Before Then Here Now As For Of To When While "
        "Where What Such Other Any Only Two Three Under Over Into Through During Among Between Within Once Later",
    )
)
_BOUNDARY = re.compile(r"(?<=[.!?])\s+")
_MARKERS = re.compile(
    r"\b(however|although|though|despite|nevertheless|nonetheless|whereas|because|since|therefore|thus|hence|"
    r"consequently|due|if|unless|provided|not|no|never|nobody|nothing|none|nor|neither|without|cannot|perhaps|"
    r"maybe|possibly|seems?|seemed|appears?|appeared|arguably)\b|n't\b|[^A-Za-z0-9 ,;:'().’/-]",
    re.IGNORECASE,
)
#: An auxiliary that takes "not" after it.
_AUXILIARY = re.compile(r"\b(was|were|is|are|had|has|have|would|will|can|should|must|did|does|do)\b(?! not\b)")


@dataclass(frozen=True)
class Carrier:
    """Plain sentences of one real document, in order."""

    doc_id: str
    sentences: tuple[str, ...]


def carriers(documents: Iterable[tuple[str, str]]) -> Iterator[Carrier]:
    """Yield the plain short sentences of each (doc_id, text) that has enough of them."""
    for doc_id, text in documents:
        sentences = tuple(s for s in map(_flat, _BOUNDARY.split(text)) if _is_plain(s))
        if len(sentences) >= DOCUMENT_SENTENCES[0]:
            yield Carrier(doc_id, sentences)


def carried_documents(sources: Sequence[Carrier], num_documents: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield (concept or "plain", text) of documents that cycle through the concepts."""
    cycle = [*clause_concepts(), *EMPHASISED, *["plain"] * NUM_PLAIN]
    weights = [len(source.sentences) for source in sources]
    for number in range(num_documents):
        rng = Random(f"carried:{seed}:{number}")
        source = rng.choices(sources, weights)[0]
        length = rng.randint(*DOCUMENT_SENTENCES)
        first = rng.randrange(max(1, len(source.sentences) - length + 1))
        concept = cycle[number % len(cycle)]
        yield concept, " ".join(_marked(source.sentences[first : first + length], concept, rng))


def clause_concepts() -> tuple[str, ...]:
    """Return the concepts with at least two patterns whose only slots are clauses."""
    return tuple(name for name in planted_concepts() if len(_patterns(name)) >= 2)


def negate(sentence: str) -> str | None:
    """Return the sentence with "not" or "never" after its first auxiliary; None if it has none."""
    match = _AUXILIARY.search(sentence)
    if match is None:
        return None
    word = "never" if match.group() in ("had", "has", "have", "would") and len(sentence) % 2 else "not"
    return f"{sentence[: match.end()]} {word}{sentence[match.end() :]}"


def _flat(sentence: str) -> str:
    return " ".join(sentence.split())


def _is_plain(sentence: str) -> bool:
    """Return whether a sentence is short and whole, and has no marker of any concept."""
    fits = MIN_WORDS <= len(sentence.split(" ")) <= MAX_WORDS and sentence[0].isupper() and sentence.endswith(".")
    return fits and not _MARKERS.search(sentence)


def _patterns(concept: str) -> list[str]:
    """Return the positive patterns whose only slots are clauses."""
    patterns = []
    for pattern in load_signal(concept).patterns(1):
        if set(re.findall(r"{(\w+)}", pattern)) <= {"clause", "clause2"} and "{clause}" in pattern:
            patterns.append(re.sub(r"[<>]", "", pattern))
    return patterns


def _document_patterns(concept: str, rng: Random) -> list[str]:
    """Return a few patterns of the concept; those that begin with their marker are preferred."""
    patterns = _patterns(concept)
    fronted = [pattern for pattern in patterns if not pattern.startswith("{")]
    return rng.sample(fronted or patterns, min(rng.randint(1, MAX_PATTERNS), len(fronted or patterns)))


def _marked(sentences: Sequence[str], concept: str, rng: Random) -> Iterator[str]:
    waiting = list(sentences)
    patterns = [] if concept in ("plain", "negation_density") else _document_patterns(concept, rng)
    while waiting:
        sentence = waiting.pop(0)
        if concept == "plain" or rng.random() > MARKED_SHARE:
            yield sentence
        elif concept == "negation_density":
            yield negate(sentence) or sentence
        else:
            pattern = rng.choice(patterns)
            second = waiting.pop(0) if "{clause2}" in pattern and waiting else sentence
            yield _fill(pattern, sentence, second)


def _fill(pattern: str, first: str, second: str) -> str:
    clauses = {"clause": _as_clause(first), "clause2": _as_clause(second)}
    text = re.sub(r"{(\w+)}", lambda match: clauses[match.group(1)], pattern)
    return text[0].upper() + text[1:]


def _as_clause(sentence: str) -> str:
    first = sentence[0].lower() if sentence.split(" ", maxsplit=1)[0] in _STARTERS else sentence[0]
    return first + sentence[1:].rstrip(".")
