"""Throughput of annotation on one core, over planted passages."""

from dataclasses import asdict
from typing import Any

from common import Clock

from poolbench.steps.pooler import SHIPPED_PIPELINE, AnnotateParams
from poolbench_corpora.planted import build_planted
from poolbench_pooler.annotate import load_pipeline
from poolbench_pooler.core import annotate_passages

CONCEPT = "causation"
WINDOW = (300, 400)


def annotation_throughput(num: int, window: tuple[int, int] = WINDOW) -> dict[str, Any]:
    """Measure passages and words per second of CPU time on one idle core; `num` passages is even."""
    table = build_planted(CONCEPT, seed=0, num_train=num, num_test=2, num_scorer=2, window=window).slice(0, num)
    texts, pipeline = table["text"].to_pylist(), load_pipeline(SHIPPED_PIPELINE)
    annotate_passages(pipeline, table.slice(0, 2), texts, AnnotateParams())
    clock = Clock()
    annotations = annotate_passages(pipeline, table, texts, AnnotateParams())
    spent = clock.read()
    words = sum(len(row) for row in annotations["word_start"].to_pylist())
    return {
        "pipeline": f"{pipeline.name} {pipeline.version}",
        "passages": len(texts),
        "words": words,
        "passages_per_cpu_s": len(texts) / spent.cpu_s,
        "words_per_cpu_s": words / spent.cpu_s,
        **asdict(spent),
    }
