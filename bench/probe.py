"""The full D1 protocol's probes against scikit-learn at the same solution; also bootstrap and memory.

    python bench/probe.py [--smallest] [--rows N] [--width N]

bench/README.md explains each figure. Takes several minutes: scikit-learn fits 120 probes.
"""

import argparse
from dataclasses import asdict
from typing import Any

import numpy as np
from common import Clock, Parser, write_report
from probing import memory, reference
from probing.data import C_VALUES, NUM_FOLDS, Protocol, protocol
from probing.sides import compare
from threadpoolctl import threadpool_info

from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import group_weights
from poolbench_prober.solver.backend import numpy_backend
from poolbench_prober.solver.batch import BatchSolver, get_solver
from poolbench_prober.solver.fits import fit_folds
from poolbench_prober.solver.interface import Solver

#: Probes on which scikit-learn's ways are tried: the concept and a control labeling, at every C.
TRIED = np.concatenate([np.arange(len(C_VALUES)), np.arange(4 * len(C_VALUES), 5 * len(C_VALUES))])
NUM_CELLS = 19 * 17
NUM_RESAMPLES = 1000


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--rows", type=int, default=1400)
    parser.add_argument("--width", type=int, default=4096)
    return parser.options(rows=80, width=64)


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    work = protocol(settings.rows, settings.width)
    print(f"{work.labels_NK.shape[1] * NUM_FOLDS} probes on {settings.rows} x {settings.width}", flush=True)
    used = memory.growth(work)
    converged = held_out_scores(work, 1e-11)
    way, tried = reference.choose(work, TRIED, converged[0][:, TRIED])
    print(f"scikit-learn's fastest way to the same solution: {way}", flush=True)
    compared = compare(work, way, converged)
    one_thread = compare(work, way, converged, num_threads=1)
    figures = {
        "scikit_learn": {"chosen": asdict(way), "tried": tried},
        "compared": compared,
        "compared_on_one_thread": one_thread,
        "solvers_cpu_s": {name: fit_all(work, solver) for name, solver in solvers().items()},
        "bootstrap": bootstrap(work, settings.smallest),
        "memory": used,
        "threads": {info["filepath"].rpartition("/")[2]: info["num_threads"] for info in threadpool_info()},
    }
    write_report("probe", settings, {"probe.vs_sklearn": compared["ratio"]}, figures)


def held_out_scores(work: Protocol, tolerance: float) -> list[np.ndarray]:
    """Return the scores [m, K] of each held-out fold."""
    fits = fit_folds(work.vectors_ND, work.labels_NK, work.c_K, work.training, tolerance)
    return [fit.scores(work.vectors_ND[work.folds == fold]) for fold, fit in enumerate(fits)]


def solvers() -> dict[str, Solver]:
    """Return the compared solvers and precisions."""
    double = BatchSolver(numpy_backend(), max_batch=1, single=False)
    return {"numpy": get_solver("numpy"), "numpy, float64 alone": double, "torch:cpu": get_solver("torch:cpu")}


def fit_all(work: Protocol, solver: Solver) -> float:
    """Return the CPU seconds of all probes in one call."""
    clock = Clock()
    fit_folds(work.vectors_ND, work.labels_NK, work.c_K, work.training, solver=solver)
    return clock.read().cpu_s


def bootstrap(work: Protocol, smallest: bool) -> dict[str, Any]:
    """Time the group bootstrap of the AUROC of 19 x 17 cells."""
    cells = 5 if smallest else NUM_CELLS
    rng, labels = np.random.default_rng(0), work.labels_NK[:, 0]
    scores = labels[:, None] + rng.standard_normal((len(labels), cells))
    clock = Clock()
    weights = group_weights(work.groups, NUM_RESAMPLES, 0)
    for column in scores.T:
        auroc_resamples(labels, column, weights, work.folds, work.groups)
    return {"cells": cells, "resamples": NUM_RESAMPLES, "rows": len(labels), **asdict(clock.read())}


if __name__ == "__main__":
    main()
