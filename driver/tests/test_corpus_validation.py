"""`corpus validate`: rules and audit of each concept, as lines and as JSON, with exit code 1 on a violation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.planted import build_planted


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


def test_a_corpus_that_passes_ends_with_0(driver: Any, folder: Path) -> None:
    done = driver({}, "corpus", "validate", str(folder), "--concepts", "imdb_sentiment")
    assert done.returncode == 0
    first, figures = done.stdout.splitlines()
    assert first == "imdb_sentiment: ok, pass"
    assert figures.startswith("  AUROC: length 0.") and figures.endswith("words_without_seeds no_coverage")


def test_a_confound_is_a_violation_with_its_reason(driver: Any, folder: Path) -> None:
    done = driver({}, "corpus", "validate", str(folder))
    assert done.returncode == 1
    assert "imdb_sentiment: ok, pass" in done.stdout
    assert "numerical_precision: ok, confounded" in done.stdout
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
