"""Inputs of the audit: the train passages of a concept with the folds of metric D1, and surface features of texts."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.errors import CellError
from poolbench.statistics.folds import connected_groups, grouped_folds
from poolbench.statuses import Status

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=[\s\"'”’)\]]|$)")
_VOWELS = re.compile(r"[aeiouy]+")
_SILENT_E = re.compile(r"[^aeiouy]e$")
_SYLLABIC_LE = re.compile(r"[^aeiouy]le$")

#: Marks that are counted one by one; the last column counts all other characters but letters, digits and spaces.
MARKS = ".,;:!?'\"()-"
_ALIKE = str.maketrans("’‘“”–—", "''\"\"--")


def length(texts: Sequence[str]) -> np.ndarray:
    """Return log(1 + n) of the numbers of words and of characters, float64 [n, 2]."""
    return np.log1p([[len(_WORD.findall(text)), len(text)] for text in texts])


def punctuation(texts: Sequence[str]) -> np.ndarray:
    """Return the number of each mark of `MARKS`, and of all other marks together, per word, float64 [n, 12]."""
    rows = []
    for text in texts:
        counts = Counter(text.translate(_ALIKE))
        marks = [counts[mark] for mark in MARKS]
        others = sum(count for char, count in counts.items() if not (char.isalnum() or char.isspace()))
        rows.append([number / _num_words(text) for number in (*marks, others - sum(marks))])
    return np.array(rows, dtype=np.float64)


def casing(texts: Sequence[str]) -> np.ndarray:
    """Return the shares of upper-case letters, capitalised words and words in all capitals, float64 [n, 3].

    A word in all capitals has at least two letters.
    """
    rows = []
    for text in texts:
        words = _WORD.findall(text)
        letters = sum(char.isalpha() for char in text)
        capitals = sum(len(word) > 1 and word.isupper() for word in words)
        initial = sum(word[0].isupper() for word in words)
        upper = sum(char.isupper() for char in text)
        rows.append([upper / max(1, letters), initial / _num_words(text), capitals / _num_words(text)])
    return np.array(rows, dtype=np.float64)


def readability(texts: Sequence[str]) -> np.ndarray:
    """Return Flesch reading ease and its two parts, words per sentence and syllables per word, float64 [n, 3].

    Reference: Flesch (1948), "A new readability yardstick": 206.835 - 1.015 words/sentences - 84.6 syllables/words.
    """
    rows = []
    for text in texts:
        words = _WORD.findall(text.lower())
        per_sentence = len(words) / max(1, len(_SENTENCE_END.findall(text)))
        per_word = sum(map(syllables, words)) / max(1, len(words))
        rows.append([206.835 - 1.015 * per_sentence - 84.6 * per_word, per_sentence, per_word])
    return np.array(rows, dtype=np.float64)


@lru_cache(maxsize=100_000)
def syllables(word: str) -> int:
    """Return the number of syllables of a lower-case English word, at least 1.

    Syllables are groups of vowels, without a silent e at the end. The e of a final -le after a consonant counts.
    """
    silent = _SILENT_E.search(word) is not None and _SYLLABIC_LE.search(word) is None
    return max(1, len(_VOWELS.findall(word)) - silent)


def one_hot(values: Sequence[str]) -> np.ndarray:
    """Return a one-hot encoding with one column per distinct value, in alphabetical order, float64 [n, v]."""
    names, codes = np.unique(np.array(values, dtype=object).astype(str), return_inverse=True)
    return np.eye(len(names))[codes]


def _num_words(text: str) -> int:
    return max(1, len(_WORD.findall(text)))


#: Features of texts by name.
TEXT_FEATURES: dict[str, Callable[[Sequence[str]], np.ndarray]] = {
    "length": length,
    "punctuation": punctuation,
    "casing": casing,
    "readability": readability,
}

#: Folds of D1.
FOLDS = 5
#: With fewer groups of a class the intervals are so wide that strategies can hardly be distinguished.
FEW_GROUPS = 50
#: A document of more than this share of a split limits what folds and intervals can say.
LARGE_DOCUMENT = 0.2


@dataclass(frozen=True)
class Training:
    """The train passages of one concept."""

    ids: tuple[str, ...]
    texts: list[str]
    domains: list[str]
    labels: np.ndarray  # 1 positive, 0 negative [n]
    groups: np.ndarray  # connected components of matched pair and source document [n], as in D1
    folds: np.ndarray  # fold of each passage [n]: those of D1 at the same seed
    error: CellError | None  # why there are no folds

    @classmethod
    def of(cls, passages: pa.Table, seed: int) -> Self:
        """Return the train passages of PASSAGES with their groups and folds.

        If there are no folds, `error` says why.
        """
        train = passages.filter(pc.equal(passages["split"], "train"))
        labels = np.array(train["label"].to_pylist(), dtype=np.int8)
        groups = folds = np.zeros(len(labels), dtype=int)
        error = None
        try:
            if not len(labels):
                raise CellError(Status.TOO_FEW, "there are no train passages")
            groups = connected_groups(train["pair_id"].to_pylist(), train["doc_id"].to_pylist())
            folds = grouped_folds(groups, labels, FOLDS, seed)
        except CellError as caught:
            error = caught
        return cls(
            ids=tuple(train["passage_id"].to_pylist()),
            texts=train["text"].to_pylist(),
            domains=[domain or "" for domain in train["domain"].to_pylist()],
            labels=labels,
            groups=groups,
            folds=folds,
            error=error,
        )

    @property
    def fewest_groups(self) -> int:
        """Return the number of groups in the class with fewer groups."""
        return min(len(np.unique(self.groups[self.labels == label])) for label in (0, 1))

    @property
    def largest_group(self) -> float:
        """Return the share of the passages in the largest group."""
        return float(np.bincount(self.groups).max() / len(self.groups)) if len(self.groups) else 0.0
