"""The corpus of real text that ships, as runs read it: by name, whole, and as its manifest says."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from poolbench.concepts import CONCEPTS
from poolbench.config import REAL_CORPUS, asset_path
from poolbench.errors import CorpusError
from poolbench.grouping import grouped
from poolbench.texts import words_of
from poolbench_corpora.audit import audit
from poolbench_corpora.checks import validate_corpus
from poolbench_corpora.folders.importing import concepts_in, import_folder, validations
from poolbench_corpora.io import SHARE_ALIKE, folder_digest, read_concept, read_manifest
from poolbench_driver.config import ConceptsConfig, CorpusConfig, corpus_folder
from poolbench_driver.corpora.dataset_card import export_folder
from poolbench_driver.corpora.sources import (
    absent_concepts,
    concept_table,
    dataset_identity,
    passages_step,
    run_dataset,
)
from poolbench_driver.dataset_folder import CARD

FOLDER = asset_path(REAL_CORPUS)
LEFT_OUT = {"imdb_sentiment", "toxicity", "depression"}
SHIPPED_CONCEPTS = concepts_in(FOLDER, None)


def config(source: str = "real") -> ConceptsConfig:
    return ConceptsConfig(corpus=CorpusConfig(source=source))


def test_the_name_stands_for_the_folder() -> None:
    assert corpus_folder("real") == FOLDER
    assert concept_table(config(), "hedging").equals(read_concept(FOLDER, "hedging"))
    identity = dataset_identity(config(), [CONCEPTS.get("hedging")])
    assert identity == dataset_identity(config(str(FOLDER)), [CONCEPTS.get("hedging")])
    assert identity["revision"] == folder_digest(FOLDER)
    names = [run_dataset(config(source), [CONCEPTS.get("hedging")])["source"] for source in ("real", str(FOLDER))]
    assert names == ["real_corpus", "folder"]


def test_a_run_takes_as_many_passages_as_it_asks_for() -> None:
    step = passages_step(config(), CONCEPTS.get("hedging"), "scorer")
    assert step.count() == step.build().num_rows == ConceptsConfig().budget.num_scorer


def test_what_is_left_out_is_absent() -> None:
    assert absent_concepts(config(), ["toxicity", "deference"]) == {"toxicity": "real has no corpus of toxicity"}
    assert set(SHIPPED_CONCEPTS) == {concept.id for concept in CONCEPTS.all()} - LEFT_OUT


def test_it_is_small_and_its_manifest_names_every_table() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    manifest = read_manifest(FOLDER)
    assert manifest is not None
    assert set(manifest.tables) == {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.parquet")}
    assert all(source.licence and source.origin for source in manifest.sources.values())


@pytest.mark.parametrize("concept", SHIPPED_CONCEPTS)
def test_passages_are_of_stated_licences_and_share_alike_ones_lie_apart(concept: str) -> None:
    (path,) = FOLDER.rglob(f"{concept}/passages.parquet")
    licences = set(pq.read_table(path, columns=["licence"])["licence"].to_pylist())
    assert all("SA" in licence for licence in licences) is (SHARE_ALIKE in path.parts)
    assert not any("SA" in licence for licence in licences) or SHARE_ALIKE in path.parts


@pytest.mark.parametrize("concept", SHIPPED_CONCEPTS)
def test_passages_obey_the_rules_of_construction(concept: str) -> None:
    low, high = (8, 128) if concept == "deference" else (40, 80)
    manifest = read_manifest(FOLDER)
    assert manifest is not None and manifest.min_domains == {"bureaucratic": 1, "frustration": 1, "narrative": 2}
    min_domains = manifest.min_domains
    assert validate_corpus(read_concept(FOLDER, concept), window=(low, high), min_domains=min_domains) == []


def test_a_verdict_is_that_of_the_audit() -> None:
    manifest = read_manifest(FOLDER)
    assert manifest is not None
    for concept in ("frustration", "academic_tone"):
        report = audit(CONCEPTS.get(concept), read_concept(FOLDER, concept))
        assert str(report.verdict) == manifest.tables[f"{concept}/passages.parquet"].verdict


@pytest.mark.parametrize("concept", ["hedging", "causation", "contrast"])
def test_the_place_where_a_pair_differs_tells_little(concept: str) -> None:
    places = []
    pairs = grouped((row["pair_id"], row) for row in read_concept(FOLDER, concept).to_pylist())
    for rows in pairs.values():
        first, second = (words_of(row["text"]) for row in rows)
        differing = [a != b for a, b in zip(first, second, strict=False)]
        places.append(differing.index(True) / len(first) if True in differing else 1.0)
    shares = np.histogram(places, 4, (0, 1))[0] / len(places)
    assert shares.min() > 0.1 and shares.max() < 0.4, shares  # .25 each, as far as whole sentences allow


def test_a_stranger_reads_it_by_the_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (FOLDER / "card.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(FOLDER.parent.parent)
    names: dict[str, Any] = {}
    exec(code, names)
    assert Counter(label for _, label in names["train"]) == {0: 700, 1: 700}


def test_an_export_is_a_folder_of_jsonl_files_that_names_no_table(tmp_path: Path) -> None:
    export_folder(FOLDER, tmp_path / "out", "frustration")
    assert read_concept(tmp_path / "out", "frustration").equals(read_concept(FOLDER, "frustration"))
    import_folder(tmp_path / "out", tmp_path / "in", None, "words")
    table = pq.read_table(FOLDER / "frustration" / "passages.parquet")
    credits_by_id = dict(zip(table["id"].to_pylist(), table["attribution"].to_pylist(), strict=True))
    for folder in (tmp_path / "out", tmp_path / "in"):
        lines = [line for file in folder.rglob("*.jsonl") for line in file.read_text("utf-8").splitlines()]
        assert {record["id"]: record["attribution"] for record in map(json.loads, lines)} == credits_by_id
        (validation,) = validations(folder, None)
        assert not validation.findings
    assert "| `attribution` |" in (tmp_path / "out" / CARD).read_text("utf-8")
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and not manifest.tables and not manifest.sources


def test_a_replaced_table_is_named_before_anything_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(FOLDER, folder)
    shutil.copy(folder / "hedging/passages.parquet", folder / "causation/passages.parquet")
    with pytest.raises(CorpusError, match=r"causation/passages\.parquet is damaged or was replaced"):
        concept_table(config(str(folder)), "hedging")
