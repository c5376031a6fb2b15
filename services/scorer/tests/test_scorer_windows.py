"""Windows: coverage, evenness, alignment of pairs, batches, degenerate texts."""

import numpy as np
import pytest

from poolbench.models.bases import find_base
from poolbench_scorer.models.scorer import read_tokens
from poolbench_scorer.models.windows import (
    BaseTokenizer,
    draw,
    length_batches,
    loop_words,
    pad_ids,
    place,
    scoring_windows,
    shuffle_words,
    training_windows,
)


@pytest.fixture(scope="module")
def tokens() -> BaseTokenizer:
    return read_tokens(find_base("minilm"))


@pytest.mark.parametrize(
    ("length", "expected"), [(0, [0]), (1, [1]), (128, [128]), (129, [64, 65]), (300, [100, 100, 100])]
)
def test_scoring_windows_cover_a_text_evenly(length: int, expected: list[int]) -> None:
    content = tuple(range(length))
    windows = scoring_windows(content)
    assert sorted(map(len, windows)) == expected
    assert sum(windows, ()) == content


def test_matched_passages_are_cut_at_the_same_places() -> None:
    passage = tuple(range(200))
    rewrite = passage[:50] + passage[51:]
    cuts = [training_windows(content, draw(0, "pair-7"), 3, (24, 64)) for content in (passage, rewrite)]
    assert [len(window) for window in cuts[0]] == [len(window) for window in cuts[1]]
    firsts = [[window[0] for window in windows] for windows in cuts]
    assert np.abs(np.subtract(*firsts)).max() <= 2


def test_training_windows_have_generation_like_lengths_and_stay_inside() -> None:
    content = tuple(range(300))
    whole, *short = training_windows(content, draw(0, "a"), 50, (24, 64))
    assert len(whole) == 128
    assert {len(window) for window in short} <= set(range(24, 65))
    assert all(window == content[window[0] : window[-1] + 1] for window in short)
    assert training_windows(content[:10], draw(0, "a"), 2, (24, 64)) == [content[:10]] * 3


def test_place_reaches_both_ends() -> None:
    assert [place(start, 10, 4) for start in (0.0, 0.5, 0.999)] == [0, 3, 6]
    assert place(0.9, 3, 4) == 0


def test_wrapping_adds_the_special_tokens(tokens: BaseTokenizer) -> None:
    (content,) = tokens.content(["Rain fell."])
    assert list(tokens.wrap(content)) == tokens.tokenizer("Rain fell.")["input_ids"]


def test_cut_gives_text_of_that_many_tokens(tokens: BaseTokenizer) -> None:
    text = "The Unbelievable harbourmaster, however, refused: nobody (not even Ann) could moor there."
    piece = tokens.cut(text, 0.4, 6)
    assert piece in text
    assert len(tokens.content([piece])[0]) == 6
    assert tokens.cut("Rain fell.", 0.9, 40) == "Rain fell."


def test_batches_bound_padded_tokens_and_lose_nothing() -> None:
    lengths = [5, 128, 1, 64, 64, 3, 90]
    batches = length_batches(lengths, 130)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= 130 for batch in batches)
    assert length_batches([300], 130) == [[0]]


def test_padding_is_masked() -> None:
    import torch

    ids, mask = pad_ids([(7, 8), (9,)], torch.device("cpu"))
    assert ids.tolist() == [[7, 8], [9, 0]]
    assert mask.tolist() == [[True, True], [True, False]]


def test_broken_texts_keep_words_and_length() -> None:
    text = "one two three four five six seven eight nine ten"
    assert sorted(shuffle_words(text, draw(0, "x")).split()) == sorted(text.split())
    looped = loop_words(text, draw(0, "x")).split()
    period = next(size for size in range(1, 11) if looped[size:] == looped[:-size])
    assert len(looped) == 10 and 3 <= period <= 8
    assert loop_words("", draw(0, "x")) == ""
