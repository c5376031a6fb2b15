"""Passages around markers: whole sentences, inside the window, with the marker anywhere."""

from random import Random

import numpy as np
import pytest
from recipes.real_corpus.windows import windows_around

from poolbench.texts import count_words

pytestmark = pytest.mark.lane(name="recipes")

WINDOW = (40, 80)
MARKED = "It might well rain again today."


def place(sentence: str) -> float | None:
    return 0.15 if "might" in sentence else None


def text(gap: int, num_markers: int) -> str:
    """Sentences of 6 words and a mark; after each `gap` of them, one with a marker."""
    plain = [f"Here sentence number {number} now ends." for number in range(gap)]
    return " ".join([sentence for _ in range(num_markers) for sentence in (*plain, MARKED)] + plain)


def test_a_passage_is_whole_sentences_around_one_marker() -> None:
    passages = list(windows_around(text(20, 30), WINDOW, count_words, Random(0), place))
    assert len(passages) == 30
    for passage in passages:
        assert WINDOW[0] <= count_words(passage) <= WINDOW[1]
        assert passage.count("might") == 1
        assert passage[0].isupper() and passage[-1] == "."


def test_a_marker_is_as_likely_at_the_start_as_at_the_end() -> None:
    places = []
    for seed in range(20):
        for passage in windows_around(text(20, 30), WINDOW, count_words, Random(seed), place):
            places.append(passage.index("might") / len(passage))
    counts, _ = np.histogram(places, 4, (0, 1))
    assert counts.sum() == 600
    # Binomial, 600 draws of probability 1/4: standard deviation 10.6. Sentences allow 11 places of a passage.
    assert counts.min() > 150 - 4 * 10.6 and counts.max() < 150 + 4 * 10.6


def test_no_sentence_is_in_two_passages() -> None:
    dense = " ".join(f"It might rain on day {number} too." for number in range(100))
    passages = list(windows_around(dense, WINDOW, count_words, Random(1), place))
    sentences = [sentence for passage in passages for sentence in passage.split(". ")]
    assert len(passages) > 5
    assert len(sentences) == len({sentence.rstrip(".") for sentence in sentences})


def test_a_text_without_marker_or_too_short_has_none() -> None:
    assert not list(windows_around(text(20, 0), WINDOW, count_words, Random(0), place))
    assert not list(windows_around(MARKED, WINDOW, count_words, Random(0), place))
