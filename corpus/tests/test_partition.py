"""The document partition: stable, complete, and the same for every part of a document."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolbench.errors import CorpusError
from poolbench_corpora.partition import SOURCE_SHARES, SPLITS, Shares, document_of, split_of

NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=30)


def test_known_documents_keep_their_split() -> None:
    """In every process, whatever the seed of its hashes."""
    known = {
        "novels/dickens": "lm",
        "novels/woolf": "scorer",
        "peps/8": "train",
        "keps/127": "test",
        "planted-lm/causation-0-000000": "lm",
        "planted-scorer/causation-0-00000": "scorer",
        "ud_english_ewt/weblog-1": "annotator",
        "gum/academic_art": "annotator",
    }
    assert {doc_id: split_of(doc_id) for doc_id in known} == known


@given(NAMES, NAMES)
def test_parts_follow_their_document(document: str, part: str) -> None:
    assert split_of(f"novels/{document}/{part}") == split_of(f"novels/{document}")
    assert document_of(f"novels/{document}/{part}/{part}") == f"novels/{document}"


@pytest.mark.parametrize("source", sorted(SOURCE_SHARES))
def test_observed_shares_are_the_declared_ones(source: str) -> None:
    counts = Counter(split_of(f"{source}/document-{number}") for number in range(4000))
    for split in SPLITS:
        declared = getattr(SOURCE_SHARES[source], split) / 10_000
        deviation = (declared * (1 - declared) / 4000) ** 0.5
        assert counts[split] / 4000 == pytest.approx(declared, abs=4 * deviation)


def test_treebanks_never_enter_concept_corpora_or_the_language_model() -> None:
    for source in ("ud_english_ewt", "gum", "uner", "wikigold", "wnut17", "broad_twitter", "sec_filings"):
        assert {split_of(f"{source}/{number}") for number in range(200)} == {"annotator"}


def test_an_unknown_source_is_refused_with_the_nearest() -> None:
    with pytest.raises(CorpusError, match="unknown source 'novel'; did you mean novels"):
        split_of("novel/austen")


@pytest.mark.parametrize("doc_id", ["", "novels", "novels/", "/austen"])
def test_a_malformed_id_is_refused(doc_id: str) -> None:
    with pytest.raises(CorpusError, match="not of the form"):
        split_of(doc_id)


def test_shares_must_sum_to_all() -> None:
    with pytest.raises(ValueError, match="sum to 10000"):
        Shares(lm=5000, train=4000)
