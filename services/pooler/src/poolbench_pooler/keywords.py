"""Keywords: the words of a passage with the highest TF-IDF."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def term(word: str) -> str | None:
    """Return the term a word counts as: itself in lower case, or None without a letter (punctuation, numbers)."""
    return word.lower() if any(character.isalpha() for character in word) else None


@dataclass(frozen=True)
class DocumentFrequencies:
    """In how many of `num_documents` texts each term occurs."""

    counts: dict[str, int]
    num_documents: int

    @classmethod
    def of(cls, documents: Iterable[Sequence[str]]) -> "DocumentFrequencies":
        """Count the words of each document."""
        counts: Counter[str] = Counter()
        num_documents = 0
        for words in documents:
            counts.update({t for t in map(term, words) if t is not None})
            num_documents += 1
        return cls(dict(counts), num_documents)

    def idf(self, name: str) -> float:
        """Return `ln((1 + n) / (1 + df))`: 0 for a term of every document, finite for a term of none.

        Reference: scikit-learn's TfidfTransformer with `smooth_idf`, less the constant 1 that it adds:
        with it the commonest function words of a long passage would win by their count alone.
        """
        return math.log((1 + self.num_documents) / (1 + self.counts.get(name, 0)))


def flag_keywords(words: Sequence[str], frequencies: DocumentFrequencies, num_keywords: int) -> list[bool]:
    """Flag every occurrence of the `num_keywords` terms with the highest TF-IDF.

    TF is the raw count in the passage; a term of every document scores 0 and is not a keyword. Ties go to the
    term that occurs first, so the flags depend on nothing but the passage and the frequencies.
    """
    terms = [term(word) for word in words]
    counts = Counter(t for t in terms if t is not None)
    scores = {name: count * frequencies.idf(name) for name, count in counts.items()}
    ranked = sorted((name for name in scores if scores[name] > 0), key=lambda name: -scores[name])
    keywords = set(ranked[:num_keywords])
    return [t in keywords for t in terms]
