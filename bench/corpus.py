"""Speed of `corpus validate`: rules and audit of all planted corpora, and near-duplicates of many passages.

`python bench/corpus.py` builds 34,000 planted passages (17 concepts) to validate. Near-duplicates are searched among
them and 66,000 more that recombine their sentences. Their building is not measured.
"""

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from common import Clock, Parser, peak_bytes, write_report

from poolbench_corpora.folders.importing import validations
from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.near import near_duplicates
from poolbench_corpora.planted import build_planted
from poolbench_corpora.planted.build import DEMO_WINDOW
from poolbench_corpora.planted.signals import planted_concepts

#: The targets in seconds, on two cores.
VALIDATE_S, NEAR_S = 180.0, 120.0


def built(job: tuple[str, int, int]) -> pa.Table:
    """Return the planted passages of a concept: (concept, number of train and of test passages)."""
    concept, num_train, num_test = job
    return build_planted(concept, seed=0, num_train=num_train, num_test=num_test, num_scorer=0)


def build_all(jobs: Sequence[tuple[str, int, int]]) -> list[pa.Table]:
    """Build in other processes, so that the peak memory of this one is that of the measured work."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(built, jobs))


def recombined(texts: Sequence[str], number: int) -> list[str]:
    """Return further passages, of sentences drawn from all texts; so each sentence is in several passages."""
    sentences = [sentence for text in texts for sentence in text.split(". ")]
    rng = Random(0)
    return [". ".join(rng.choices(sentences, k=9)) for _ in range(number)]


def compare(texts: list[str]) -> dict[str, Any]:
    """Find the near-duplicates of texts; report time, and by how much the peak memory grew."""
    before, clock = peak_bytes(), Clock()
    pairs, _ = near_duplicates(texts)
    spent = asdict(clock.read())
    words = sum(len(text.split()) for text in texts)
    counts = {"num_passages": len(texts), "num_words": words, "num_pairs": len(pairs), **spent}
    return {**counts, "peak_growth_bytes": peak_bytes() - before}


def validate(tables: Sequence[pa.Table], folder: Path) -> dict[str, Any]:
    """Validate a folder of corpora as `corpus validate` does."""
    manifest = CorpusManifest(revision="bench", tokenizer="words", window=DEMO_WINDOW)
    write_corpus(pa.concat_tables(tables), folder, manifest)  # planted, and deleted afterwards
    clock = Clock()
    reports = list(validations(folder, None))
    spent = asdict(clock.read())
    verdicts = {report.concept: str(report.audit.verdict) for report in reports}
    findings = sum(len(report.findings) for report in reports)
    counts = {
        "num_passages": sum(report.num_passages for report in reports),
        "findings": findings,
        "verdicts": verdicts,
    }
    return {**counts, **spent, "peak_bytes": peak_bytes()}


def main() -> None:
    """Measure, and write `bench/out/corpus.json`."""
    args = Parser(__doc__).options()
    num_train, num_test, num_near = (30, 10, 1_000) if args.smallest else (1400, 600, 100_000)
    concepts = planted_concepts()[: 2 if args.smallest else None]
    tables = build_all([(name, num_train, num_test) for name in concepts])
    texts = [text for table in tables for text in table["text"].to_pylist()]
    near = compare([*texts, *recombined(texts, num_near - len(texts))])
    with tempfile.TemporaryDirectory() as folder:
        valid = validate(tables, Path(folder))
    ratios = {
        "corpus.validate_within_target": VALIDATE_S / valid["wall_s"],
        "corpus.near_within_target": NEAR_S / near["wall_s"],
    }
    write_report("corpus", args, ratios, {"validate": valid, "near_duplicates": near})


if __name__ == "__main__":
    main()
