"""Surface features of texts, against values that were computed by hand."""

import numpy as np
import pytest

from poolbench_corpora.audit.training import (
    MARKS,
    TEXT_FEATURES,
    casing,
    length,
    one_hot,
    punctuation,
    readability,
    syllables,
)


@pytest.mark.parametrize(
    ("word", "number"),
    [("cat", 1), ("table", 2), ("the", 1), ("make", 1), ("reading", 2), ("banana", 3), ("beautiful", 3), ("hm", 1)],
)
def test_syllables(word: str, number: int) -> None:
    assert syllables(word) == number


def test_reading_ease_by_hand() -> None:
    # 7 words, 2 sentences; syllables: the 1, cat 1, sat 1, on 1, a 1, table 2, then it-sat: "It" 1 -> 8 of 7 words
    ((ease, per_sentence, per_word),) = readability(["The cat sat on a table. It!"])
    assert (per_sentence, per_word) == pytest.approx((7 / 2, 8 / 7))
    assert ease == pytest.approx(206.835 - 1.015 * 3.5 - 84.6 * 8 / 7)  # 106.597


def test_a_point_inside_a_number_ends_no_sentence() -> None:
    ((_, per_sentence, _),) = readability(["It costs 3.50 here now. Yes."])
    assert per_sentence == pytest.approx(5 / 2)


def test_punctuation_is_counted_per_word() -> None:
    (row,) = punctuation(["Well, “yes” — no; 50 %"])
    counts = dict(zip([*MARKS, "others"], row * 3, strict=True))
    assert {mark: number for mark, number in counts.items() if number} == pytest.approx(
        {",": 1, '"': 2, "-": 1, ";": 1, "others": 1}
    )


def test_casing_by_hand() -> None:
    (row,) = casing(["NASA and Bob saw I"])
    assert row == pytest.approx([6 / 14, 3 / 5, 1 / 5])


def test_length_and_domains() -> None:
    np.testing.assert_allclose(length(["a bc"]), np.log1p([[2, 4]]))
    np.testing.assert_array_equal(one_hot(["b", "a", "b"]), [[0, 1], [1, 0], [0, 1]])


def test_a_text_without_words_has_finite_features() -> None:
    for features in TEXT_FEATURES.values():
        assert np.isfinite(features(["...", "", "12"])).all()
