"""Keywords by TF-IDF: by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from poolbench_pooler.keywords import DocumentFrequencies, flag_keywords, term

TRAIN = [["the", "cat"], ["the", "dog"], ["The", "cat", "sat", "."]]


def test_document_frequencies_by_hand() -> None:
    frequencies = DocumentFrequencies.of(TRAIN)
    assert frequencies.num_documents == 3
    assert frequencies.counts == {"the": 3, "cat": 2, "dog": 1, "sat": 1}
    assert frequencies.idf("the") == pytest.approx(0.0)
    assert frequencies.idf("cat") == pytest.approx(math.log(4 / 3))
    assert frequencies.idf("unseen") == pytest.approx(math.log(4))


def test_keywords_by_hand() -> None:
    # the: 3 x 0; cat: 2 x .288 = .575; bird: 1 x 1.386; dog: 1 x .693.
    words = ["The", "cat", ",", "the", "bird", "the", "Cat", "dog"]
    frequencies = DocumentFrequencies.of(TRAIN)
    bird, cat, dog = {4}, {1, 6}, {7}
    assert _flagged(flag_keywords(words, frequencies, 1)) == bird
    assert _flagged(flag_keywords(words, frequencies, 2)) == bird | dog
    assert _flagged(flag_keywords(words, frequencies, 3)) == bird | dog | cat
    assert _flagged(flag_keywords(words, frequencies, 9)) == bird | dog | cat, "a word of every text is none"
    frequencies = DocumentFrequencies.of([["a"]])
    assert flag_keywords(["y", "x", "z"], frequencies, 2) == [True, True, False]
    assert flag_keywords(["1", "!"], DocumentFrequencies.of(TRAIN), 10) == [False, False]
    assert flag_keywords([], DocumentFrequencies.of(TRAIN), 10) == []


def _flagged(flags: list[bool]) -> set[int]:
    return {index for index, flag in enumerate(flags) if flag}


@pytest.mark.parametrize(
    ("word", "expected"),
    [("Cat", "cat"), ("3rd", "3rd"), ("42", None), ("...", None), ("🙂", None), ("שלום", "שלום")],
)
def test_terms_have_letters(word: str, expected: str | None) -> None:
    assert term(word) == expected


def test_agrees_with_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    draw = [[f"w{i}" for i in generator.zipf(1.5, size=60) if i < 200] for _ in range(40)]
    train, passage = draw[:-1], draw[-1]
    vectorizer = TfidfVectorizer(analyzer=lambda words: words, smooth_idf=True, norm=None).fit(train)
    counts = vectorizer.transform([passage]).toarray()[0] / vectorizer.idf_
    values = counts * (vectorizer.idf_ - 1)
    scores = dict(zip(vectorizer.get_feature_names_out(), values, strict=True))
    seen = [word for word in passage if word in scores]
    flags = flag_keywords(seen, DocumentFrequencies.of(train), 10)
    chosen = {word for word, flag in zip(seen, flags, strict=True) if flag}
    others = set(seen) - chosen
    assert len(chosen) == 10
    assert min(scores[word] for word in chosen) >= max(scores[word] for word in others)
