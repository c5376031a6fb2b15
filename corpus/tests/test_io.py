"""Corpus files and their rules: what is written is read back, and each defect is named by file and line."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError, RestrictedError
from poolbench_corpora.io import (
    TABLE_NAME,
    CorpusManifest,
    TableFacts,
    folder_digest,
    has_scorer_texts,
    joined_manifest,
    read_concept,
    read_manifest,
    write_corpus,
    write_manifest,
)
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


def record(number: int, label: int, split: str) -> dict[str, Any]:
    """A row of a table."""
    fields = {
        "domain": "fiction",
        "doc_id": f"novels/{split}",
        "source": "novels",
        "licence": "CC0",
        "attribution": "A",
    }
    return {"id": f"{number}", "text": f"Text {number}.", "label": label, "split": split, "token_count": 3, **fields}


def records_of(*splits: str) -> list[dict[str, Any]]:
    """Two rows of each split, one per class."""
    return [record(2 * number + label, label, split) for number, split in enumerate(splits) for label in (1, 0)]


def write_table(folder: Path, rows: list[dict[str, Any]], place: str = "hedging") -> Path:
    path = folder / place / TABLE_NAME
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def manifest_of(folder: Path, path: Path) -> CorpusManifest:
    facts = TableFacts(sha256=hashlib.sha256(path.read_bytes()).hexdigest(), verdict="pass")
    tables = {path.relative_to(folder).as_posix(): facts}
    return CorpusManifest(revision="r", tokenizer="words", window=(1, 9), tables=tables)


def test_a_table_is_read_as_its_six_files_would_be(tmp_path: Path) -> None:
    write_table(tmp_path, records_of("train", "test", "scorer"))
    read = read_concept(tmp_path, "hedging")
    assert read.schema == PASSAGES
    assert Counter(zip(read["split"].to_pylist(), read["label"].to_pylist(), strict=True)) == {
        (split, label): 1 for split in ("train", "test", "scorer") for label in (0, 1)
    }
    assert set(read["doc_id"].to_pylist()) == {"novels/train", "novels/test", "novels/scorer"}
    assert has_scorer_texts(tmp_path, "hedging")


def test_a_concept_below_share_alike_belongs_to_the_corpus(tmp_path: Path) -> None:
    write_table(tmp_path, records_of("train", "test"), "share_alike/deference")
    assert read_concept(tmp_path, "deference").num_rows == 4
    assert not has_scorer_texts(tmp_path, "deference")
    with pytest.raises(CorpusError, match=r"has no corpus of 'hedging'; it has: deference$"):
        read_concept(tmp_path, "hedging")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "row 1: label is 2; it must be 1"),
        ({"label": None}, "row 1: label: Input should be a valid integer"),
        ({"split": "dev"}, "row 1: split is 'dev'; it must be one of train, test, scorer"),
        ({"licence": " "}, "row 1: licence is empty"),
        ({"source": None, "attribution": ""}, "row 1: source, attribution is empty"),
        ({"text": " "}, "row 1: text is empty"),
        ({"source": "planted-corpus"}, "row 1: a planted passage; tables hold real text"),
        ({"id": "0"}, "id '0' occurs twice"),
        ({"split": "test"}, "has no passages of train 1"),
    ],
)
def test_a_wrong_row_of_a_table_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = records_of("train", "test")
    path = write_table(tmp_path, [rows[0] | change, *rows[1:]])
    with pytest.raises(CorpusError) as error:
        read_concept(tmp_path, "hedging")
    assert message in str(error.value) and str(path.parent) in str(error.value)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "licence"} for row in records_of("train", "test")]
    write_table(tmp_path, rows)
    with pytest.raises(CorpusError, match=r"passages\.parquet has no column licence; a table needs id, text"):
        read_concept(tmp_path, "hedging")


def test_a_table_that_is_not_the_one_of_its_manifest_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path, records_of("train", "test"))
    write_manifest(tmp_path, manifest_of(tmp_path, path))
    assert read_manifest(tmp_path) == manifest_of(tmp_path, path)
    folder_digest(tmp_path)
    other = records_of("train", "test")
    other[0]["text"] = "Another text."
    pq.write_table(pa.Table.from_pylist(other), path)
    for reader in (lambda: read_concept(tmp_path, "hedging"), lambda: folder_digest(tmp_path)):
        with pytest.raises(CorpusError, match=r"passages\.parquet is damaged or was replaced"):
            reader()
    path.unlink()
    write_table(tmp_path, records_of("train", "test"), "causation")
    with pytest.raises(CorpusError, match=r"hedging/passages\.parquet is missing; get the folder again"):
        folder_digest(tmp_path)


def test_a_table_that_the_manifest_lacks_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path, records_of("train", "test"))
    write_manifest(tmp_path, manifest_of(tmp_path, path))
    write_table(tmp_path, records_of("train", "test"), "causation")
    with pytest.raises(CorpusError, match=r"causation/passages\.parquet is not in manifest\.json"):
        read_concept(tmp_path, "causation")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"manifest\.json: Field required"):
        read_concept(tmp_path, "hedging")


def test_passages_that_replace_a_table_leave_the_other_tables_as_they_are(tmp_path: Path) -> None:
    path = write_table(tmp_path, records_of("train", "test"))
    write_manifest(tmp_path, manifest_of(tmp_path, path))
    write_corpus(planted(), tmp_path, joined_manifest(tmp_path, ["causation"], MANIFEST))
    joined = read_manifest(tmp_path)
    assert joined is not None and joined.tables == manifest_of(tmp_path, path).tables
    table = build_planted("hedging", seed=0, num_train=8, num_test=4, num_scorer=0)
    write_corpus(table, tmp_path, joined_manifest(tmp_path, ["hedging"], MANIFEST))
    assert by_id(read_concept(tmp_path, "hedging")) == by_id(table)
    assert "tables" not in json.loads((tmp_path / "manifest.json").read_text())
