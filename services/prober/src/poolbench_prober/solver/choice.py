"""The choice of the implementation: NumPy on the processor or torch on an accelerator, the one measured faster."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import lru_cache

from poolbench_prober.solver.backend import numpy_backend, torch_backend
from poolbench_prober.solver.batch import BatchSolver
from poolbench_prober.solver.interface import TOLERANCE, Problem, Solver

#: Problems of at most so many products (rows x rows x columns) are not worth a transfer.
_SMALL = 10**8
_MEASURED: dict[tuple[int, ...], str] = {}


@lru_cache(maxsize=8)
def get_solver(name: str) -> Solver:
    """Return the solver `numpy`, `torch:cpu` or `torch:cuda`; raise ValueError for another name."""
    if name == "numpy":
        return BatchSolver(numpy_backend(), max_batch=1)
    library, _, device = name.partition(":")
    if library != "torch" or device not in ("cpu", "cuda"):
        raise ValueError(f"unknown solver {name!r}; known: numpy, torch:cpu, torch:cuda")
    return BatchSolver(torch_backend(device), max_batch=512)


def choose_solver(problems: Sequence[Problem]) -> Solver:
    """Return the fastest solver for problems of this shape, measured once per shape and process.

    Without an accelerator it is NumPy: torch on a processor was never measured faster (bench/probe.py shows both).
    All solvers agree within their tolerance, so that the choice is no part of a result's key.
    """
    first = problems[0]
    if len(first.rows) ** 2 * first.vectors_ND.shape[1] <= _SMALL or not has_accelerator():
        return get_solver("numpy")
    shape = tuple(size.bit_length() for size in (len(first.rows), first.vectors_ND.shape[1], len(first.c_P)))
    if shape not in _MEASURED:
        _MEASURED[shape] = min(("numpy", "torch:cuda"), key=lambda name: _seconds(get_solver(name), list(problems)))
    return get_solver(_MEASURED[shape])


@lru_cache(maxsize=1)
def has_accelerator() -> bool:
    """Return whether there is a CUDA driver, and a torch that finds a device."""
    try:
        ctypes.CDLL("libcuda.so.1")  # loading torch only for this check costs seconds and memory
        import torch
    except (OSError, ImportError):
        return False
    return bool(torch.cuda.is_available())


def _seconds(solver: Solver, problems: list[Problem]) -> float:
    """Return the time of all problems, without the cost of a first call."""
    solver.solve(problems[:1], TOLERANCE)
    began = time.perf_counter()
    solver.solve(problems, TOLERANCE)
    return time.perf_counter() - began
