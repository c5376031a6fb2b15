"""Keywords: the words of a passage with the highest TF-IDF."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def term(word: str) -> str | None:
    """Return a word in lower case, or None if the word has no letter (punctuation, numbers)."""
    return word.lower() if any(character.isalpha() for character in word) else None


@dataclass(frozen=True)
class DocumentFrequencies:
    """For each term, the number of documents, among `num_documents`, in which it occurs."""

    counts: dict[str, int]
    num_documents: int

    @classmethod
    def of(cls, documents: Iterable[Sequence[str]]) -> "DocumentFrequencies":
        """Count the documents in which each term occurs."""
        counts: Counter[str] = Counter()
        num_documents = 0
        for words in documents:
            counts.update({t for t in map(term, words) if t is not None})
            num_documents += 1
        return cls(dict(counts), num_documents)

    def idf(self, name: str) -> float:
        """Return the inverse document frequency `ln((1 + n) / (1 + df))`.

        The value is 0 for a term in every document, and finite for a term in no document.

        Reference: scikit-learn's TfidfTransformer with `smooth_idf`, without the constant 1 that scikit-learn adds.
        With this constant, the commonest function words of a long passage would win by their count alone.
        """
        return math.log((1 + self.num_documents) / (1 + self.counts.get(name, 0)))


def flag_keywords(words: Sequence[str], frequencies: DocumentFrequencies, num_keywords: int) -> list[bool]:
    """Flag every occurrence of the `num_keywords` terms with the highest TF-IDF.

    TF is the raw count in the passage. A term that occurs in every document scores 0 and is not a keyword. The term
    that occurs first wins ties, so the flags depend only on the passage and the frequencies.
    """
    terms = [term(word) for word in words]
    counts = Counter(t for t in terms if t is not None)
    scores = {name: count * frequencies.idf(name) for name, count in counts.items()}
    ranked = sorted((name for name in scores if scores[name] > 0), key=lambda name: -scores[name])
    keywords = set(ranked[:num_keywords])
    return [t in keywords for t in terms]
