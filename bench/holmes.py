"""Probing sets from text to score, and their probes alone, against the code released with Holmes, on one core.

    python bench/holmes.py [--smallest] [--seeds N] [--model FOLDER] [--sets SET,...]

bench/README.md explains each figure.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import REPOSITORY, Clock, Parser, turns, write_report
from probing import adam
from probing.tasks import SIZES, Size, problem
from threadpoolctl import threadpool_limits

from poolbench.config import resolve_model
from poolbench.steps.prober import TaskParams
from poolbench_corpora.probing import ProbingSets
from poolbench_prober.probing import models, published
from poolbench_prober.probing.models import Problem, score


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the released recipe; a converged probe has none")
    parser.add_argument("--most-rows", type=int, default=10**9)
    parser.add_argument("--most-columns", type=int, default=10**9)
    parser.add_argument("--model", default="demo", help="preset or folder")
    parser.add_argument("--sets", default="planted-*", help="probing sets, with commas")
    parser.add_argument("--instances", type=int, default=400, help="instances of a set, about")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.options(
        seeds=2, most_rows=300, most_columns=16, sets="planted-pos,planted-role", instances=40, rounds=1
    )


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
    whole = compare_ways(settings)
    speeds = {f"width {width}": probes_per_minute(min(width, settings.most_columns), settings) for width in (256, 4096)}
    ratios = {
        "holmes.vs_reference": whole["vs_reference"],
        "holmes.forwards": whole["forwards"],
        "holmes.probe_vs_adam": statistics.geometric_mean(figure["vs_adam"] for figure in figures.values()),
        "holmes.probe_dev_score": min(figure["dev_score_vs_adam"] for figure in figures.values()),
    }
    write_report("holmes", settings, ratios, {"probes": figures, "sets": whole, "probes_per_minute": speeds})


def compare_ways(settings: argparse.Namespace) -> dict[str, Any]:
    """Return CPU seconds of both ways on the same sets, each in processes of their own, and their test scores.

    The released code has one process for each set.
    """
    model, names = resolve_model(settings.model).source, settings.sets.split(",")
    set_ids = [probing_set.id for probing_set in ProbingSets().choose(names)]
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    by_way: dict[str, dict[str, Any]] = {}
    for way in turns(seconds, settings.rounds):
        parts = [set_ids] if way == "ours" else [[name] for name in set_ids]
        runs = [_run(way, model, settings.instances, part) for part in parts]
        seconds[way].append(sum(cpu_s for cpu_s, _ in runs))
        by_way[way] = {"scores": {name: value for _, report in runs for name, value in report["scores"].items()}}
        by_way[way]["num_run"] = sum(report["num_run"] for _, report in runs)
        if way == "ours":
            by_way[way]["num_distinct"] = runs[0][1]["num_distinct"]
        print(way, round(seconds[way][-1], 1), "s", flush=True)
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"], strict=True)]
    return {
        "vs_reference": statistics.median(ratios),
        "forwards": by_way["ours"]["num_run"] / by_way["ours"]["num_distinct"],
        "forwards_theirs": by_way["theirs"]["num_run"] / by_way["ours"]["num_distinct"],
        "cpu_s": seconds,
        "mean_score": {way: statistics.mean(report["scores"].values()) for way, report in by_way.items()},
        **by_way,
    }


def _run(way: str, model: str, instances: int, names: list[str]) -> tuple[float, dict[str, Any]]:
    """Return CPU seconds of a process, start included, and what it found."""
    command = [sys.executable, str(REPOSITORY / "bench/probing/ways.py"), way, model, str(instances), *names]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **_ONE_THREAD})
    if process.returncode:
        sys.exit(process.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, json.loads(process.stdout.splitlines()[-1])


#: Both sides have one core.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def probes_per_minute(width: int, settings: argparse.Namespace) -> float:
    """Return how many probes with a choice among four C fit into a minute of one core: 2,000 instances, two classes."""
    drawn = problem(Size(min(2_000, settings.most_rows), width, 2), TaskParams())
    spent = _measure(drawn, lambda task: models.fit_converged(task, task.params.c_values).predicted, 1)
    return 60 / spent["cpu_s"]


def compare(size: Size, num_seeds: int) -> dict[str, Any]:
    """Return CPU seconds and scores on dev of one set: ours with its choice among four C, theirs with all seeds."""
    drawn = problem(size, TaskParams(protocol="released"))
    ours = _measure(drawn, lambda task: models.fit_converged(task, task.params.c_values).predicted, 1)
    theirs = _measure(drawn, adam.fit, num_seeds)
    numpy = _measure(drawn, lambda task: published.fit(task).predicted, num_seeds)
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
    scores = [float(score(drawn.is_regression, drawn.values[dev], output[dev], ones)[0]) for output in predicted]
    return {"cpu_s": cpu_s, "dev_score": statistics.mean(scores)}


if __name__ == "__main__":
    main()
