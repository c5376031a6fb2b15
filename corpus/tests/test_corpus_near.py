"""Near-duplicates agree with a comparison of all pairs, and large clusters do not cost quadratic time."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from poolbench_corpora.near import FREQUENT, NEAR_DUPLICATE, near_duplicates, shingles
from poolbench_corpora.planted import build_planted


def compared(texts: list[str], share: float = NEAR_DUPLICATE) -> dict[tuple[int, int], float]:
    """The same by sets of 8-grams, pair by pair."""
    grams = [shingles(text) for text in texts]
    found = {}
    for first, second in combinations(range(len(texts)), 2):
        shorter = min(len(grams[first]), len(grams[second]))
        common = len(grams[first] & grams[second]) / shorter if shorter else 0.0
        if common >= share:
            found[first, second] = common
    return found


def as_mapping(texts: list[str], share: float = NEAR_DUPLICATE) -> dict[tuple[int, int], float]:
    pairs, shares = near_duplicates(texts, share)
    return {(first, second): value for (first, second), value in zip(pairs.tolist(), shares.tolist(), strict=True)}


WORDS = st.lists(st.sampled_from("abc"), max_size=14).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=12), st.sampled_from([0.05, 0.2, 0.8]))
def test_the_pairs_are_those_of_all_comparisons(texts: list[str], share: float) -> None:
    assert as_mapping(texts, share) == compared(texts, share)


def test_matched_pairs_of_a_planted_corpus_are_found_with_their_shares() -> None:
    texts = build_planted("contrast", seed=0, num_train=80, num_test=0, num_scorer=0)["text"].to_pylist()
    found = as_mapping(texts)
    assert found == compared(texts)
    assert len(found) > 20


def test_a_large_cluster_is_a_chain() -> None:
    copies = ["one two three four five six seven eight nine"] * (3 * FREQUENT)
    pairs, shares = near_duplicates(copies)
    np.testing.assert_array_equal(pairs, [[row, row + 1] for row in range(len(copies) - 1)])
    assert (shares == 1).all()


def test_short_texts_and_no_texts_have_no_near_duplicates() -> None:
    for texts in ([], ["seven words are too few for that"] * 3):
        assert as_mapping(texts) == {}
