"""The minimal pairs that are judged."""

from recipes.steered_evaluation.pairs import read_pairs


def test_pairs_have_the_grammatical_sentence_first() -> None:
    pairs = read_pairs(1)
    assert len(pairs) == 59 and len(set(pairs)) == 59
    assert ("Who should Derek hug after shocking Richard?", "Who should Derek hug Richard after shocking?") in pairs
