"""`corpus export` and `corpus validate`, and passages that the driver puts into the store."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import mlcroissant
import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from poolbench.concepts import CONCEPTS
from poolbench.config import BUDGETS
from poolbench.errors import ConfigError, CorpusError, InputError, RestrictedError, UnknownNameError
from poolbench_corpora.io import MANIFEST_NAME, CorpusManifest, read_concept, read_manifest, write_corpus
from poolbench_corpora.planted import build_planted
from poolbench_driver.cli.corpus import app
from poolbench_driver.config import ConceptsConfig, CorpusConfig
from poolbench_driver.corpora.dataset_card import CROISSANT, FIELDS, export_folder, export_planted
from poolbench_driver.corpora.sources import at_most, dataset_identity, dataset_revision, passages_step
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
        assert [field["name"] for field in records["field"]] == [name for name in FIELDS if name != "attribution"]


def test_the_validator_of_croissant_accepts_it_and_reads_the_records(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_folder(corpus, out, None)
    found = mlcroissant.Dataset(str(out / CROISSANT))  # raises where the metadata are not valid
    assert not found.metadata.issues.errors
    first = next(iter(found.records("hedging/train_pos")))
    stored = json.loads((out / "hedging" / "train_pos.jsonl").read_text("utf-8").splitlines()[0])
    for field in FIELDS.keys() - {"attribution"}:  # the grammar needs no credit
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that passes, and one with a confound."""
    path = tmp_path_factory.mktemp("corpora")
    sizes = {"num_train": 200, "num_test": 60, "num_scorer": 4}
    tables = [build_planted(concept, seed=0, **sizes) for concept in ("imdb_sentiment", "numerical_precision")]
    rows = tables[1].to_pylist()
    for row in rows:
        row["text"] = row["text"].replace(". ", "! ") if row["label"] else row["text"]
    tables[1] = pa.Table.from_pylist(rows, tables[1].schema)
    write_corpus(pa.concat_tables(tables), path, CorpusManifest(revision="1", tokenizer="words", window=(90, 140)))
    return path


def test_a_confound_is_a_violation_with_its_reason(driver: Any, folder: Path) -> None:
    done = driver({}, "corpus", "validate", str(folder), "--concepts", "imdb_sentiment")
    first, figures = done.stdout.splitlines()
    assert (done.returncode, first) == (0, "imdb_sentiment: ok, pass")
    assert figures.startswith("  AUROC: length 0.") and figures.endswith("words_without_seeds no_coverage")
    done = driver({}, "corpus", "validate", str(folder))
    assert done.returncode == 1 and "numerical_precision: ok, confounded" in done.stdout
    assert "  confounded: punctuation alone separates the classes with an AUROC of 1." in done.stdout


def test_json_holds_findings_verdicts_and_figures(driver: Any, folder: Path) -> None:
    done = driver({}, "corpus", "validate", str(folder), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["valid"]) == (1, False)
    verdicts = {each["concept"]: (each["valid"], each["verdict"]) for each in found["concepts"]}
    assert verdicts == {"imdb_sentiment": (True, "pass"), "numerical_precision": (False, "confounded")}
    checks = {check["check"]: check for check in found["concepts"][1]["checks"]}
    assert checks["punctuation"]["ci_low"] > checks["punctuation"]["limit"] == 0.6
    assert checks["near_duplicates"]["value"] == 0.0


def test_a_broken_rule_is_a_violation_too(driver: Any, folder: Path, tmp_path: Path) -> None:
    passages = build_planted("imdb_sentiment", seed=0, num_train=200, num_test=60, num_scorer=4)
    licences = pa.array([""] * passages.num_rows)
    nameless = passages.set_column(passages.schema.get_field_index("licence"), "licence", licences)
    write_corpus(nameless, tmp_path, CorpusManifest(revision="1", tokenizer="words", window=(90, 140)))
    done = driver({}, "corpus", "validate", str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.startswith("imdb_sentiment: 1 findings, pass\n  licences: ")


def test_at_most_keeps_pairs_whole_and_classes_equal_whatever_the_order() -> None:
    passages = build_planted("contrast", seed=0, num_train=60, num_test=2, num_scorer=2)
    train = passages.filter([split == "train" for split in passages["split"].to_pylist()])
    kept, backwards = at_most(train, 20), at_most(train.take(list(range(train.num_rows))[::-1]), 20)
    assert set(kept["passage_id"].to_pylist()) == set(backwards["passage_id"].to_pylist())
    labels, pairs = kept["label"].to_pylist(), kept["pair_id"].to_pylist()
    assert (labels.count(1), labels.count(0)) == (10, 10)
    assert all(pairs.count(pair) == 2 for pair in pairs)


def corpus_folder(path: Path) -> ConceptsConfig:
    passages = build_planted("narrative", seed=0, num_train=8, num_test=4, num_scorer=4)
    write_corpus(passages, path, CorpusManifest(revision="1", tokenizer="words", window=(1, 500)))
    return ConceptsConfig(corpus=CorpusConfig(source=str(path)))


def rewritten(path: Path, source: str) -> None:
    """Gives every record of one concept another source."""
    for file in path.glob("*.jsonl"):
        records = [json.loads(line) | {"source": source} for line in file.read_text("utf-8").splitlines()]
        file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def test_a_folder_of_planted_passages_is_still_planted(tmp_path: Path) -> None:
    config = corpus_folder(tmp_path)
    assert dataset_identity(config)["source"] == "planted"
    rewritten(tmp_path / "narrative", 'reviews "source": "planted-corpus"')  # quoted in a text it says nothing
    assert dataset_identity(config)["source"] == "folder"


def test_a_folder_that_changes_is_read_again(tmp_path: Path) -> None:
    """In one process, with names, sizes and times of the files as before: its key and its passages both move."""
    config = corpus_folder(tmp_path)
    first = passages_step(config, CONCEPTS.get("narrative"), "train")
    passages = first.build()["text"].to_pylist()
    file = tmp_path / "narrative" / "train_pos.jsonl"
    times, content = file.stat(), file.read_text("utf-8")
    file.write_text(content.replace(" the ", " The "), "utf-8")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = passages_step(config, CONCEPTS.get("narrative"), "train")
    assert second.key != first.key and second.build()["text"].to_pylist() != passages


def test_planted_and_real_passages_in_one_folder_are_refused(tmp_path: Path) -> None:
    config = corpus_folder(tmp_path)
    real = tmp_path / "academic_tone"
    real.mkdir()
    for file in (tmp_path / "narrative").glob("*.jsonl"):
        (real / file.name).write_bytes(file.read_bytes())
    rewritten(real, "arxiv")
    with pytest.raises(CorpusError, match="16 of 32 passages are planted; they are never ranked with real ones"):
        dataset_identity(config)


def test_passages_of_another_seed_or_window_are_another_dataset(tmp_path: Path) -> None:
    settings = ({}, {"seed": 1}, {"window": (30, 90)}, {"window": (30, 90), "seed": 1})
    corpora = [CorpusConfig(**each) for each in settings]
    identities = [dataset_identity(ConceptsConfig(corpus=corpus)) for corpus in corpora]
    revisions = [dataset_revision(identity) for identity in identities]
    assert revisions[0] == identities[0]["revision"] and len(set(revisions)) == 4
    assert revisions[3] == f"{revisions[0]}, window 30-90, seed 1"
    folder = dataset_identity(corpus_folder(tmp_path))
    assert dataset_revision(folder) == folder["revision"]
    for setting in ({"seed": 1}, {"window": (30, 90)}):
        with pytest.raises(ConfigError, match=r"are for planted passages, and the texts of real are read as they are"):
            dataset_identity(ConceptsConfig(corpus=CorpusConfig(source="real", **setting)))


def test_planted_passages_are_exported_at_a_budget_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_train": 8, "num_test": 4, "num_scorer": 6}
    monkeypatch.setitem(BUDGETS, "small", BUDGETS["small"].model_copy(update=sizes))
    options = ["--concepts", "hedging,contrast", "--budget", "small", "--seed", "3"]
    assert CliRunner().invoke(app, ["export", str(tmp_path / "out"), *options]).exit_code == 0
    for name in ("hedging", "contrast"):
        expected = build_planted(name, seed=3, **sizes).sort_by("passage_id")
        assert read_concept(tmp_path / "out", name).sort_by("passage_id").equals(expected)
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest.recipe == "poolbench-driver corpus export --budget small --seed 3"
    assert f"`{manifest.recipe}`" in (tmp_path / "out" / CARD).read_text("utf-8")
    with pytest.raises(UnknownNameError, match="unknown budget 'smal'; did you mean small"):
        export_planted(tmp_path / "out", "hedging", "smal", 0)
