"""Passages that the driver puts into the store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from poolbench.concepts import CONCEPTS
from poolbench.errors import CorpusError
from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.planted import build_planted
from poolbench_driver.config import ConceptsConfig, CorpusConfig
from poolbench_driver.corpora.sources import at_most, dataset_identity, dataset_revision, passages_step


def test_at_most_keeps_pairs_whole_and_classes_equal() -> None:
    passages = build_planted("contrast", seed=0, num_train=60, num_test=2, num_scorer=2)
    kept = at_most(passages.filter([split == "train" for split in passages["split"].to_pylist()]), 20)
    labels, pairs = kept["label"].to_pylist(), kept["pair_id"].to_pylist()
    assert (labels.count(1), labels.count(0)) == (10, 10)
    assert all(pairs.count(pair) == 2 for pair in pairs)


def test_at_most_does_not_depend_on_the_order_of_the_passages() -> None:
    passages = build_planted("narrative", seed=0, num_train=40, num_test=2, num_scorer=2)
    backwards = passages.take(list(range(passages.num_rows))[::-1])
    first, second = (set(at_most(table, 12)["passage_id"].to_pylist()) for table in (passages, backwards))
    assert first == second


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
