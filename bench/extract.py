"""Extraction with all strategies against the plain forward pass, and against the reference code.

    python bench/extract.py [--smallest] [--passages N] [--tokens N] [--batch-tokens N] [--rounds N]

A Llama of 134 M parameters with random weights, and the demo model. bench/README.md explains each ratio.
"""

import argparse

from common import Parser, write_report
from extraction.annotation import annotation_throughput
from extraction.inputs import TINY, Shape, layers_of, random_passages
from extraction.measure import measure, ratios_of
from extraction.memory import Size, peaks_on_cpu, summary
from extraction.ways import Workload

from poolbench.config import resolve_model
from poolbench.settings import ExtractorSettings
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.models.load import load_decoder


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--batch-tokens", type=int, default=3200)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.options(passages=2, tokens=40, batch_tokens=80, rounds=1)


def demo_work(settings: argparse.Namespace) -> Workload:
    """Return the same work for the demo model."""
    decoder = load_decoder(resolve_model("demo"), ExtractorSettings(device="cpu"))
    passages = random_passages(settings.passages, settings.tokens, decoder.model.config.vocab_size)
    return Workload(decoder, passages, layers_of(decoder), BatchLimits(max_tokens=settings.batch_tokens))


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    size = Size(TINY if settings.smallest else Shape(), settings.passages, settings.tokens, settings.batch_tokens)
    memory = summary(peaks_on_cpu(size))
    figures = measure(size.work(), settings.rounds)
    demo = measure(demo_work(settings), settings.rounds)
    annotation = annotation_throughput(2 if settings.smallest else 48)
    report = {"random": figures | {"memory": memory}, "demo": demo, "annotation": annotation}
    write_report("extract", settings, ratios_of(figures, memory), report)


if __name__ == "__main__":
    main()
