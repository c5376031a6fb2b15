"""The extraction benchmark on one GPU, at the shape of Llama-3.1-8B with random weights made on the device.

    python bench/gpu_extract.py [--device cuda|cpu] [--hidden N] [--blocks N] ... [--passages N] [--rounds N]

It reads no file and needs no network, only PyTorch, Transformers and this project's packages. It writes
`bench/out/gpu_extract.json`. `--smallest --device cpu` runs anywhere, as a check of itself.
"""

import argparse
from dataclasses import asdict, fields

from common import Parser, require_device, write_report
from extraction.inputs import LLAMA_8B, TINY, Shape
from extraction.measure import measure, ratios_of
from extraction.memory import Size, peaks_on_cpu, peaks_on_gpu, summary

from poolbench_extractor.config import BatchLimits

#: Share of the passages that the slow sides get: the reference's ways take many times as long.
SLOW_SHARE = 0.25


def parse() -> argparse.Namespace:
    """Parse the command line; every field of the shape is a flag."""
    parser = Parser(__doc__)
    parser.add_argument("--device", default="cuda")
    for part in fields(Shape):
        default = getattr(LLAMA_8B, part.name)
        parser.add_argument(f"--{part.name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--passages", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--batch-tokens", type=int, default=BatchLimits().max_tokens)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.options(passages=2, tokens=40, batch_tokens=80, rounds=1, **asdict(TINY))
    require_device(options.device)
    return options


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    shape = Shape(**{part.name: getattr(settings, part.name) for part in fields(Shape)})
    size = Size(shape, settings.passages, settings.tokens, settings.batch_tokens)
    on_gpu = settings.device.startswith("cuda")
    resident = None if on_gpu else peaks_on_cpu(size)
    work = size.work(settings.device)
    figures = measure(work, settings.rounds, slow_share=SLOW_SHARE)
    memory = summary(peaks_on_gpu(work) if on_gpu else resident)
    write_report("gpu_extract", settings, ratios_of(figures, memory), {"random": figures | {"memory": memory}})


if __name__ == "__main__":
    main()
