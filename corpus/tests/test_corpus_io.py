"""Corpus files: what is written is read back, and what is malformed is named by file and line."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError, RestrictedError
from poolbench_corpora.io import CorpusManifest, read_concept, read_manifest, write_corpus
from poolbench_corpora.near import has_inferred_documents, infer_documents
from poolbench_corpora.partition import PARTITION_VERSION
from poolbench_corpora.planted import PLANTED_REVISION, build_planted

MANIFEST = CorpusManifest(revision=PLANTED_REVISION, tokenizer="words", window=(90, 140), recipe="a test")


def planted(concept: str = "causation") -> pa.Table:
    return build_planted(concept, seed=0, num_train=8, num_test=4, num_scorer=4)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_corpus(planted(), tmp_path, MANIFEST)
    return tmp_path


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["passage_id"])


def test_a_corpus_survives_writing_and_reading(corpus: Path) -> None:
    read = read_concept(corpus, "causation")
    assert read.schema == PASSAGES
    assert by_id(read) == by_id(planted())


def test_the_layout_is_the_published_one(corpus: Path) -> None:
    files = {path.name for path in (corpus / "causation").iterdir()}
    names = ("train_pos", "train_neg", "test_pos", "test_neg", "scorer_pos", "scorer_neg")
    assert files == {f"{name}.jsonl" for name in names}
    record = json.loads((corpus / "causation/train_pos.jsonl").read_text().splitlines()[0])
    published = {"id", "text", "label", "domain", "token_count", "matched_pair_id", "split"}
    assert published | {"doc_id", "source", "licence", "revision", "signal"} == set(record)


def test_the_manifest_names_tokenizer_revision_and_partition(corpus: Path) -> None:
    manifest = read_manifest(corpus)
    assert manifest == MANIFEST
    assert manifest.partition_version == PARTITION_VERSION


def test_rewriting_a_corpus_removes_files_that_it_no_longer_has(corpus: Path) -> None:
    table = build_planted("causation", seed=0, num_train=8, num_test=4, num_scorer=0)
    write_corpus(table, corpus, MANIFEST)
    assert not (corpus / "causation/scorer_pos.jsonl").exists()
    assert by_id(read_concept(corpus, "causation")) == by_id(table)


def test_sensitive_passages_are_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RestrictedError, match="toxicity"):
        write_corpus(planted("toxicity"), tmp_path, MANIFEST)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("POOLBENCH_SENSITIVE", "true")
    write_corpus(planted("toxicity"), tmp_path, MANIFEST)
    assert read_concept(tmp_path, "toxicity").num_rows == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "not JSON"),
        ("[]", "a list; expected an object"),
        ("{}", "id: Field required; text: Field required; label: Field required"),
        ('{"id": "a", "text": "b", "label": "1"}', "label: Input should be a valid integer"),
        ('{"id": "a", "text": "b", "label": 0}', "label is 0, this file holds 1"),
        ('{"id": "a", "text": " ", "label": 1}', "text is empty"),
        ('{"id": "a", "text": "b", "label": 1, "split": "test"}', "split is 'test'; this file holds 'train'"),
    ],
)
def test_a_wrong_line_is_named_with_file_and_number(corpus: Path, line: str, message: str) -> None:
    path = corpus / "causation/train_pos.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(CorpusError) as error:
        read_concept(corpus, "causation")
    assert f"{path}, line 2" in str(error.value)
    assert message in str(error.value)


def test_empty_missing_and_binary_files_are_named(corpus: Path) -> None:
    path = corpus / "causation/test_neg.jsonl"
    path.write_text("")
    with pytest.raises(CorpusError, match=r"test_neg\.jsonl is empty"):
        read_concept(corpus, "causation")
    path.write_bytes(b"\xfe")
    with pytest.raises(CorpusError, match=r"test_neg\.jsonl is not UTF-8 in line 1, byte 1"):
        read_concept(corpus, "causation")
    path.unlink()
    with pytest.raises(CorpusError, match=r"test_neg\.jsonl is missing"):
        read_concept(corpus, "causation")


def test_missing_folders_are_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="has no corpus of 'hedging'; it has: causation"):
        read_concept(corpus, "hedging")
    assert read_manifest(tmp_path / "nowhere") is None


def test_a_repeated_id_is_refused(corpus: Path) -> None:
    path = corpus / "causation/train_pos.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(CorpusError, match="occurs twice"):
        read_concept(corpus, "causation")


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
    table = planted()
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
