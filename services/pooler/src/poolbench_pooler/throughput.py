"""How fast one core annotates; benchmarks call this."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poolbench_pooler.annotate import BATCH_SIZE, Pipeline, parse


@dataclass(frozen=True)
class Throughput:
    """Work done and the processor time it took, summed over all threads.

    Attributes:
        num_tokens: Words and punctuation marks of the pipeline in them.
        cpu_s: Processor seconds, so that other work on the machine does not count.
    """

    num_passages: int
    num_tokens: int
    cpu_s: float
    batch_size: int

    @property
    def tokens_per_s(self) -> float:
        """Return tokens per second of one core."""
        return self.num_tokens / self.cpu_s

    @property
    def passages_per_s(self) -> float:
        """Return passages per second of one core."""
        return self.num_passages / self.cpu_s

    def figures(self) -> dict[str, Any]:
        """Return all of it, for a report."""
        return {**asdict(self), "tokens_per_s": self.tokens_per_s, "passages_per_s": self.passages_per_s}


def measure_throughput(pipeline: Pipeline, texts: Sequence[str], *, batch_size: int = BATCH_SIZE) -> Throughput:
    """Parse the texts, cached or not, after one of them as a warm-up. A hundred of 300 words take some ten seconds."""
    list(parse(pipeline, texts[:1], batch_size=batch_size))
    start = time.process_time()
    num_tokens = sum(len(columns["word_start"]) for columns in parse(pipeline, texts, batch_size=batch_size))
    return Throughput(len(texts), num_tokens, time.process_time() - start, batch_size)
