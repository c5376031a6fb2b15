"""TF-IDF by hand, and against scikit-learn."""

from __future__ import annotations

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
    assert frequencies.idf("the") == pytest.approx(math.log(4 / 4) + 1)
    assert frequencies.idf("cat") == pytest.approx(math.log(4 / 3) + 1)
    assert frequencies.idf("unseen") == pytest.approx(math.log(4 / 1) + 1)


def test_keywords_by_hand() -> None:
    # the: 3 x 1.000; cat: 2 x 1.288; bird: 1 x 2.386; dog: 1 x 1.693.
    words = ["The", "cat", ",", "the", "bird", "the", "Cat", "dog"]
    frequencies = DocumentFrequencies.of(TRAIN)
    top_two = [True, True, False, True, False, True, True, False]
    assert flag_keywords(words, frequencies, 2) == top_two
    top_three = [True, True, False, True, True, True, True, False]
    assert flag_keywords(words, frequencies, 3) == top_three


def test_ties_go_to_the_first_word() -> None:
    frequencies = DocumentFrequencies.of([["a"]])
    assert flag_keywords(["y", "x", "z"], frequencies, 2) == [True, True, False]


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
    scores = dict(
        zip(vectorizer.get_feature_names_out(), vectorizer.transform([passage]).toarray()[0], strict=True)
    )
    seen = [word for word in passage if word in scores]
    flags = flag_keywords(seen, DocumentFrequencies.of(train), 10)
    chosen = {word for word, flag in zip(seen, flags, strict=True) if flag}
    others = set(seen) - chosen
    assert len(chosen) == 10
    assert min(scores[word] for word in chosen) >= max(scores[word] for word in others)


def test_passage_without_terms() -> None:
    assert flag_keywords(["1", "!"], DocumentFrequencies.of(TRAIN), 10) == [False, False]
    assert flag_keywords([], DocumentFrequencies.of(TRAIN), 10) == []
