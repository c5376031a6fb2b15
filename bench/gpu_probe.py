"""10,000 probes over 84 matrices of 1,400 x 4,096 on one GPU; target 60 seconds on an H100.

    python bench/gpu_probe.py [--device cuda|cpu] [--smallest] [--matrices N] [--rows N] [--width N]

It reads no file and needs no network, only PyTorch, SciPy and this project's packages. It writes
`bench/out/gpu_probe.json`. The clock runs from vectors in host memory to weights in host memory. A part of the
matrices is solved by NumPy too, and the two must agree. `--smallest --device cpu` runs anywhere, as a check of itself.
"""

import argparse
import time
from typing import Any

import numpy as np
from common import Parser, require_device, write_report
from probing.data import C_VALUES, NUM_FOLDS, Protocol, protocol

from poolbench.statistics.auroc import auroc
from poolbench_prober.solver.batch import get_solver
from poolbench_prober.solver.interface import TOLERANCE, Problem, Solution


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--matrices", type=int, default=84)
    parser.add_argument("--rows", type=int, default=1400)
    parser.add_argument("--width", type=int, default=4096)
    settings = parser.options(matrices=4, rows=80, width=200)
    require_device(settings.device)
    return settings


def problems_of(work: Protocol) -> list[Problem]:
    """Return one problem per fold."""
    return [
        Problem(work.vectors_ND, rows, work.labels_NK[rows][..., None], work.c_K, "logistic") for rows in work.training
    ]


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    works = [protocol(settings.rows, settings.width, seed) for seed in range(settings.matrices)]
    problems = [problem for work in works for problem in problems_of(work)]
    solver = get_solver(f"torch:{settings.device}")
    solver.solve(problems[:NUM_FOLDS], TOLERANCE)  # loads the libraries
    began = time.perf_counter()
    solutions = solver.solve(problems, TOLERANCE)
    seconds = time.perf_counter() - began
    num_probes = sum(len(problem.c_P) for problem in problems)
    figures = {
        "num_probes": num_probes,
        "wall_s": seconds,
        "probes_per_s": num_probes / seconds,
        "c_values": C_VALUES,
        "worst_gradient_ratio": max(float(solution.gradient_ratio.max()) for solution in solutions),
        "against_numpy": agreement(works[0], solutions[:NUM_FOLDS]),
        "peak_device_bytes": peak_bytes(settings.device),
    }
    print(f"{num_probes} probes in {seconds:.2f} s on {solver.name}")
    write_report("gpu_probe", settings, {"probe.seconds_for_10000": 1e4 * seconds / num_probes}, figures)


def agreement(work: Protocol, solutions: list[Solution]) -> dict[str, Any]:
    """Return the largest differences from NumPy on one matrix: coefficients (relative) and held-out AUROC."""
    expected = get_solver("numpy").solve(problems_of(work), TOLERANCE)
    coefficients, aurocs = 0.0, 0.0
    for fold, (solution, other) in enumerate(zip(solutions, expected, strict=True)):
        held = work.folds == fold
        for column in range(len(work.c_K)):
            one, two = solution.weights_DPk[:, column, 0], other.weights_DPk[:, column, 0]
            coefficients = max(coefficients, float(np.linalg.norm(one - two) / np.linalg.norm(two)))
            labels = work.labels_NK[held, column]
            pair = (auroc(labels, work.vectors_ND[held] @ weights) for weights in (one, two))
            aurocs = max(aurocs, abs(next(pair) - next(pair)))
    return {"coefficients": coefficients, "auroc": aurocs}


def peak_bytes(device: str) -> int | None:
    """Return the peak memory of PyTorch's allocator; None on a processor."""
    import torch

    return torch.cuda.max_memory_allocated() if device == "cuda" else None


if __name__ == "__main__":
    main()
