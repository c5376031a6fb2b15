"""The document partition: stable, complete, and the same for every part of a document."""

import hashlib
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolbench.errors import CorpusError
from poolbench_corpora.partition import SOURCE_SHARES, SPLITS, Shares, bucket_of, document_of, split_of

NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=30)


def test_known_documents_keep_their_split() -> None:
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


def test_the_bucket_is_the_first_8_bytes_of_sha256() -> None:
    digest = hashlib.sha256(b"1:novels/trollope").hexdigest()
    assert bucket_of("novels/trollope") == int(digest[:16], 16) % 10_000


def test_splits_do_not_depend_on_the_process() -> None:
    names = [f"peps/{number}" for number in range(50)]
    code = f"from poolbench_corpora.partition import split_of; print([split_of(n) for n in {names}])"
    for seed in ("0", "1"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        output = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
        assert output.strip() == str([split_of(name) for name in names])


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
