"""Near-duplicates against all comparisons, and the documents that are inferred from them."""

import random
from itertools import combinations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from poolbench.contracts.tables import PASSAGES
from poolbench_corpora.near import (
    FREQUENT,
    NEAR_DUPLICATE,
    has_inferred_documents,
    infer_documents,
    near_duplicates,
    shingles,
)
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


@settings(max_examples=50, deadline=None)
@given(st.lists(WORDS, max_size=12), st.sampled_from([0.05, 0.2, 0.8]))
def test_the_pairs_are_those_of_all_comparisons(texts: list[str], share: float) -> None:
    assert as_mapping(texts, share) == compared(texts, share)


def test_a_large_cluster_is_a_chain() -> None:
    copies = ["one two three four five six seven eight nine"] * (3 * FREQUENT)
    pairs, shares = near_duplicates(copies)
    np.testing.assert_array_equal(pairs, [[row, row + 1] for row in range(len(copies) - 1)])
    assert (shares == 1).all()


def test_short_texts_and_no_texts_have_no_near_duplicates() -> None:
    for texts in ([], ["seven words are too few for that"] * 3):
        assert as_mapping(texts) == {}


def bare(texts: list[str], pairs: list[str | None] | None = None) -> pa.Table:
    """Passages without documents, as the published corpus has them."""
    rows = [
        {"passage_id": str(index), "concept": "causation", "text": text, "pair_id": pair}
        for index, (text, pair) in enumerate(zip(texts, pairs or [None] * len(texts), strict=True))
    ]
    return pa.Table.from_pylist(rows, schema=PASSAGES)


def test_documents_are_inferred_from_shared_8_grams_and_pairs() -> None:
    one, two = "a b c d e f g h", "i j k l m n o p"
    texts = [f"{one} x", f"y {one} {two}", f"z {two}", "q r s t u v w x", "another text of this pair"]
    documents = infer_documents(bare(texts, [None, None, None, "p", "p"]))["doc_id"].to_pylist()
    assert documents == ["inferred/causation-0"] * 3 + ["inferred/causation-3"] * 2


def templated(num: int, seed: int = 0) -> list[str]:
    """Passages of one template: 24 fixed words around three chosen ones, and a sentence of their own."""
    rng = random.Random(seed)
    words = [f"word{number}" for number in range(4000)]
    opening = "this is the report of the office for the week in which the following was seen and written down"
    return [f"{opening} {' '.join(rng.sample(words, 30))} end of the report signed" for _ in range(num)]


def test_a_template_does_not_make_one_document_of_a_corpus() -> None:
    documents = infer_documents(bare(templated(200)))["doc_id"].to_pylist()
    assert len(set(documents)) == 200


def test_copies_are_one_document_even_among_passages_of_a_template() -> None:
    """Sixty passages are copies of one, but for one word; they share a template with 140 others."""
    copies = [templated(1, seed=9)[0].replace("end", f"end{number}") for number in range(60)]
    documents = infer_documents(bare([*templated(140), *copies]))["doc_id"].to_pylist()
    assert len(set(documents[:140])) == 140
    assert len(set(documents[140:])) == 1
    assert not set(documents[:140]) & set(documents[140:])


def test_pairs_stay_together_at_every_threshold() -> None:
    texts = templated(120)
    pairs = [f"p{number % 60}" for number in range(120)]
    documents = infer_documents(bare(texts, pairs))["doc_id"].to_pylist()
    assert documents[:60] == documents[60:]
    assert len(set(documents)) == 60


def test_named_documents_stay() -> None:
    table = build_planted("causation", seed=0, num_train=8, num_test=4, num_scorer=4)
    assert infer_documents(table) is table
    assert not has_inferred_documents(table)
    assert has_inferred_documents(infer_documents(bare(["a"])))


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_inferred_groups_do_not_depend_on_order(letters: list[str]) -> None:
    """Texts of one letter repeated share 8-grams, texts of two letters do not: groups are the letters."""
    table = infer_documents(bare([" ".join(letter * 9) for letter in letters]))
    groups: dict[str, set[str]] = {}
    for letter, document in zip(letters, table["doc_id"].to_pylist(), strict=True):
        groups.setdefault(letter, set()).add(document)
    assert all(len(documents) == 1 for documents in groups.values())
    assert len(set().union(*groups.values())) == len(groups)
