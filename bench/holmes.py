"""Converged probes of tasks against the recipe released with Holmes, on equal sets and one core.

    python bench/holmes.py [--smallest] [--seeds N]

bench/README.md explains each figure.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import Clock, Parser, write_report
from probing import adam
from probing.tasks import SIZES, Size, problem
from threadpoolctl import threadpool_limits

from poolbench.steps.prober import TaskParams
from poolbench_prober.tasks import converged, published
from poolbench_prober.tasks.problem import Problem, score


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the released recipe; a converged probe has none")
    parser.add_argument("--most-rows", type=int, default=10**9)
    parser.add_argument("--most-columns", type=int, default=10**9)
    return parser.options(seeds=2, most_rows=300, most_columns=16)


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with threadpool_limits(1):
        for name, size in SIZES.items():
            rows, width = min(size.rows, settings.most_rows), min(size.width, settings.most_columns)
            figures[name] = compare(Size(rows, width, size.classes), settings.seeds)
            print(name, figures[name], flush=True)
    ratios = {
        "holmes.probe_vs_adam": statistics.geometric_mean(each["vs_adam"] for each in figures.values()),
        "holmes.probe_dev_score": min(each["dev_score_vs_adam"] for each in figures.values()),
    }
    write_report("holmes", settings, ratios, figures)


def compare(size: Size, num_seeds: int) -> dict[str, Any]:
    """Return CPU seconds and scores on dev of one set: ours with its choice among four C, theirs with all seeds."""
    drawn = problem(size, TaskParams(protocol="released"))
    ours = _measure(drawn, lambda each: converged.fit(each, each.params.c_values).predicted, 1)
    theirs = _measure(drawn, adam.fit, num_seeds)
    numpy = _measure(drawn, lambda each: published.fit(each).predicted, num_seeds)
    return {
        "size": size._asdict(),
        "ours": ours,
        "adam": theirs,
        "adam_in_numpy": numpy,
        "vs_adam": theirs["cpu_s"] / ours["cpu_s"],
        "vs_adam_in_numpy": numpy["cpu_s"] / ours["cpu_s"],
        "dev_score_vs_adam": ours["dev_score"] / theirs["dev_score"],
    }


def _measure(drawn: Problem, fit: Callable[[Problem], np.ndarray], num_seeds: int) -> dict[str, float]:
    dev, clock = drawn.rows["dev"], Clock()
    predicted = [fit(drawn._replace(seed=seed)) for seed in range(num_seeds)]
    cpu_s, ones = clock.read().cpu_s, np.ones((1, len(dev)))
    scores = [float(score(drawn.is_regression, drawn.values[dev], each[dev], ones)[0]) for each in predicted]
    return {"cpu_s": cpu_s, "dev_score": statistics.mean(scores)}


if __name__ == "__main__":
    main()
