"""`corpus export`: the published layout with card, Croissant metadata and checksums."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import mlcroissant
import pyarrow as pa
import pytest
import yaml

from poolbench.errors import ConfigError, InputError, RestrictedError
from poolbench_corpora.io import MANIFEST_NAME, CorpusManifest, read_concept, write_corpus
from poolbench_corpora.planted import build_planted
from poolbench_driver.corpora.publishing import CROISSANT, FIELDS, export_folder
from poolbench_driver.dataset_folder import CARD, CHECKSUMS

MANIFEST = CorpusManifest(revision="r 1", tokenizer="words", window=(1, 500), recipe="by hand")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = ("hedging", "narrative", "toxicity")
    tables = [build_planted(name, seed=0, num_train=8, num_test=4, num_scorer=6) for name in names]
    with monkeypatch.context() as allowed:
        allowed.setenv("POOLBENCH_SENSITIVE", "true")
        write_corpus(pa.concat_tables(tables), tmp_path / "in", MANIFEST)
    return tmp_path / "in"


def test_an_export_is_the_corpus_without_sensitive_concepts(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_folder(corpus, out, None)
    for name in ("hedging", "narrative"):
        assert read_concept(out, name).equals(read_concept(corpus, name))
    assert not (out / "toxicity").exists()
    for line in (out / CHECKSUMS).read_text().splitlines():
        found, name = line.split("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == found
    listed = {line.split("  ")[1] for line in (out / CHECKSUMS).read_text().splitlines()}
    assert listed == {str(path.relative_to(out)) for path in out.rglob("*.jsonl")} | {CARD, CROISSANT, MANIFEST_NAME}


def test_the_card_says_what_is_in_it(corpus: Path, tmp_path: Path) -> None:
    export_folder(corpus, tmp_path / "out", "hedging")
    _, header, body = (tmp_path / "out" / CARD).read_text().split("---\n", 2)
    found = yaml.safe_load(header)
    assert found["license"] == "apache-2.0"
    (config,) = found["configs"]
    assert config["config_name"] == "hedging"
    assert {each["split"] for each in config["data_files"]} == {"train", "test", "scorer"}
    assert "| hedging: Claims weakened by words of uncertainty | 4 / 4 | 2 / 2 | 3 / 3 |" in body
    assert "| revision | r 1 |" in body and "`by hand`" in body


def test_croissant_names_every_file_and_field(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_folder(corpus, out, "hedging")
    found = json.loads((out / CROISSANT).read_text())
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.0" and found["version"] == "1.0.0+r-1"
    files = {each["@id"]: each for each in found["distribution"]}
    assert set(files) == {str(path.relative_to(out)) for path in out.rglob("*.jsonl")}
    for name, each in files.items():
        assert each["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
    for records in found["recordSet"]:
        first = json.loads((out / f"{records['@id']}.jsonl").read_text().splitlines()[0])
        for field in records["field"]:
            assert field["source"]["fileObject"]["@id"] in files
            kind = {"sc:Text": str, "sc:Integer": int}[field["dataType"]]
            assert isinstance(first[field["source"]["extract"]["column"]], kind | None)
        assert [field["name"] for field in records["field"]] == list(FIELDS)


def test_the_validator_of_croissant_accepts_it_and_reads_the_records(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_folder(corpus, out, None)
    found = mlcroissant.Dataset(str(out / CROISSANT))  # raises where the metadata are not valid
    assert not found.metadata.issues.errors
    first = next(iter(found.records("hedging/train_pos")))
    stored = json.loads((out / "hedging" / "train_pos.jsonl").read_text("utf-8").splitlines()[0])
    for field in FIELDS:
        value = first[f"hedging/train_pos/{field}"]
        assert (value.decode() if isinstance(value, bytes) else value) == stored[field]


def test_the_same_corpus_is_exported_alike(corpus: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export_folder(corpus, tmp_path / name, None)
    one, two = ((tmp_path / name / CHECKSUMS).read_text() for name in ("one", "two"))
    assert one == two


def test_what_cannot_be_exported_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(RestrictedError, match="toxicity"):
        export_folder(corpus, tmp_path / "out", "toxicity")
    with pytest.raises(ConfigError, match="the corpus itself"):
        export_folder(corpus, corpus, None)
    assert not (tmp_path / "out").exists()


def test_an_export_replaces_itself_and_nothing_else(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_folder(corpus, out, None)
    export_folder(corpus, out, "hedging")
    assert not (out / "narrative").exists() and "narrative" not in (out / CHECKSUMS).read_text()
    for folder in (tmp_path / "another", tmp_path / "notes"):
        folder.mkdir()
    write_corpus(read_concept(corpus, "hedging"), tmp_path / "another", MANIFEST)  # a corpus, but no export
    (tmp_path / "notes/notes.txt").write_text("mine")
    for name in ("another", "notes"):
        with pytest.raises(InputError, match="holds other files"):
            export_folder(corpus, tmp_path / name, None)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
