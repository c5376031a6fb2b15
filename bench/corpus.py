"""Speed of `corpus validate`: rules and audit of all planted corpora, and near-duplicates of many passages.

`python bench/corpus.py` builds 34,000 planted passages (17 concepts) to validate. Near-duplicates are searched among
them and 66,000 more that recombine their sentences. The building is not measured. `--quick` is a smoke test.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from common import write_report

from poolbench.corpora.io import CorpusManifest, write_corpus
from poolbench.corpora.near import near_duplicates
from poolbench.corpora.planted import build_planted
from poolbench.corpora.planted.build import DEMO_WINDOW
from poolbench.corpora.planted.signals import planted_concepts
from poolbench_driver.corpora.validation import validations

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
    before, began_s = peak_bytes(), time.perf_counter()
    pairs, _ = near_duplicates(texts)
    wall_s = time.perf_counter() - began_s
    words = sum(len(text.split()) for text in texts)
    found = {"num_passages": len(texts), "num_words": words, "num_pairs": len(pairs), "wall_s": wall_s}
    return {**found, "peak_growth_bytes": peak_bytes() - before}


def validate(tables: Sequence[pa.Table], folder: Path) -> dict[str, Any]:
    """Validate a folder of corpora as `corpus validate` does."""
    manifest = CorpusManifest(revision="bench", tokenizer="words", window=DEMO_WINDOW)
    write_corpus(pa.concat_tables(tables), folder, manifest, allow_sensitive=True)  # planted, and deleted afterwards
    began_s, cpu_s = time.perf_counter(), time.process_time()
    found = list(validations(folder, None))
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    verdicts = {each.concept: str(each.audit.verdict) for each in found}
    findings = sum(len(each.findings) for each in found)
    counts = {"num_passages": sum(each.num_passages for each in found), "findings": findings, "verdicts": verdicts}
    return {**counts, "wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure, and write `bench/out/corpus.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test with few passages")
    args = parser.parse_args()
    num_train, num_test, num_near = (120, 60, 6_000) if args.quick else (1400, 600, 100_000)
    tables = build_all([(name, num_train, num_test) for name in planted_concepts()])
    texts = [text for table in tables for text in table["text"].to_pylist()]
    near = compare([*texts, *recombined(texts, num_near - len(texts))])
    with tempfile.TemporaryDirectory() as folder:
        valid = validate(tables, Path(folder))
    ratios = {"validate_within_target": VALIDATE_S / valid["wall_s"], "near_within_target": NEAR_S / near["wall_s"]}
    load = os.getloadavg()[0]
    write_report("corpus", ratios, {"validate": valid, "near_duplicates": near, "load_average": load})


if __name__ == "__main__":
    main()
