"""Corpus files and their rules: what is written is read back, and each defect is named by file and line."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError, RestrictedError
from poolbench_corpora.io import CorpusManifest, read_concept, read_manifest, write_corpus
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
    manifest = read_manifest(corpus)
    assert manifest == MANIFEST and manifest.partition_version == PARTITION_VERSION


def test_the_layout_is_the_published_one(corpus: Path) -> None:
    files = {path.name for path in (corpus / "causation").iterdir()}
    names = ("train_pos", "train_neg", "test_pos", "test_neg", "scorer_pos", "scorer_neg")
    assert files == {f"{name}.jsonl" for name in names}
    record = json.loads((corpus / "causation/train_pos.jsonl").read_text().splitlines()[0])
    published = {"id", "text", "label", "domain", "token_count", "matched_pair_id", "split"}
    assert published | {"doc_id", "source", "licence", "revision", "signal"} == set(record)


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
