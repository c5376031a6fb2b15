"""From problems to solutions on one backend, for one matrix in NumPy or many on a GPU."""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from poolbench_prober.solver.backend import Array, Backend, numpy_backend, torch_backend
from poolbench_prober.solver.conjugate import columns
from poolbench_prober.solver.interface import TOLERANCE, Loss, Problem, Solution, Solver
from poolbench_prober.solver.kernel import Kernel, Standardised
from poolbench_prober.solver.newton import Newton


@dataclass(frozen=True)
class BatchSolver:
    """Solve problems of one shape together, as many as memory allows."""

    backend: Backend
    max_batch: int  # most problems in a batch
    single: bool = True  # whether Newton steps may be in float32 (refined in float64); only the time depends on it

    @property
    def name(self) -> str:
        """Return name in records."""
        return self.backend.name

    def solve(self, problems: Sequence[Problem], tolerance: float) -> list[Solution]:
        """Solve all problems, in batches of equal width, loss and number of probes."""
        alike: dict[tuple[object, ...], list[int]] = {}
        for number, problem in enumerate(problems):
            shape = (problem.loss, problem.vectors_ND.shape[1], *problem.targets_nPk.shape[1:])
            alike.setdefault(shape, []).append(number)
        solutions: dict[int, Solution] = {}
        for numbers in alike.values():
            largest_bytes = max(problem_bytes(problems[number]) for number in numbers)
            size = max(1, min(self.max_batch, self.backend.free_bytes() // largest_bytes))
            for start in range(0, len(numbers), size):
                batch = numbers[start : start + size]
                solved = solve_batch([problems[number] for number in batch], tolerance, self.backend, self.single)
                solutions.update(zip(batch, solved, strict=True))
        return [solutions[number] for number in range(len(problems))]


def problem_bytes(problem: Problem) -> int:
    """Return the approximate peak device memory of a problem: matrix, kernel in two precisions, and probes."""
    num_rows, width = len(problem.rows), problem.vectors_ND.shape[1]
    kernel = num_rows * min(num_rows, width) * 12
    probes = 40 * num_rows * int(np.prod(problem.targets_nPk.shape[1:])) * 8
    return problem.vectors_ND.nbytes // 4 + kernel + num_rows * 128 * 40 + probes


def solve_batch(problems: Sequence[Problem], tolerance: float, backend: Backend, single: bool = True) -> list[Solution]:
    """Solve problems of one width, loss and number of probes together."""
    standardised = Standardised(problems, backend)
    mask_Bn = backend.array(standardised.mask)
    newton = Newton(Kernel.of(standardised), _loss(problems, mask_Bn, backend), mask_Bn, backend, single)

    def hopeless() -> np.ndarray:
        weights_BDPk, intercepts_BPk, _ = _in_columns(standardised, newton, backend)
        fits = zip(problems, backend.numpy(weights_BDPk), backend.numpy(intercepts_BPk), strict=True)
        none_P = np.zeros(newton.num_probes, dtype=bool)
        return np.stack([problem.give_up(*probes) if problem.give_up else none_P for problem, *probes in fits])

    newton.solve(tolerance, hopeless if any(problem.give_up for problem in problems) else None)
    weights_BDPk, intercepts_BPk, gradient_BP = _in_columns(standardised, newton, backend)
    ratio_BP, converged_BP = backend.numpy(gradient_BP / newton.start_norm), newton.converged(gradient_BP, tolerance)
    weights, intercepts = backend.numpy(weights_BDPk), backend.numpy(intercepts_BPk)
    return [
        Solution(weights[number], intercepts[number], ratio_BP[number], converged_BP[number], steps, backend.name)
        for number, steps in enumerate(newton.num_steps)
    ]


def _loss(problems: Sequence[Problem], mask_Bn: Array, backend: Backend) -> Loss:
    targets = np.zeros((*mask_Bn.shape, *problems[0].targets_nPk.shape[1:]))
    for number, problem in enumerate(problems):
        targets[number, : len(problem.rows)] = problem.targets_nPk
    c_BP = np.stack([problem.c_P for problem in problems])
    scale = backend.array(c_BP)[:, None, :, None] * mask_Bn[:, :, None, None]
    return Loss(problems[0].loss, backend.array(targets), scale, backend)


def _in_columns(standardised: Standardised, newton: Newton, backend: Backend) -> tuple[Array, Array, Array]:
    """Return weights [B, D, P, k], intercepts [B, P, k] and gradient norms [B, P] in the coordinates of the columns.

    The norm that the kernel gives is exact only to the root of its rounding; here it is S' times the gradient.
    """
    both = backend.xp.concatenate([columns(newton.dual), columns(newton.unprojected())], -1)
    num_columns = both.shape[-1] // 2
    shape = newton.dual.shape[2:]
    squares = (newton.gradient.intercept**2).sum((1, 3))
    weights, shift = [], 0 * both[:, :1, :num_columns]
    for _, block, means_B1w, scales_B1w in standardised.blocks():
        found_Bwm = block.mT @ both
        squares = squares + (found_Bwm[..., num_columns:] ** 2).sum(1).reshape(-1, *shape).sum(-1)
        weights.append(found_Bwm[..., :num_columns] / scales_B1w.mT)
        shift = shift + means_B1w @ weights[-1]
    weights_BDm = backend.xp.concatenate(weights, 1)
    intercepts_BPk = newton.intercept[:, 0] - shift.reshape(-1, *shape)
    return weights_BDm.reshape(*weights_BDm.shape[:2], *shape), intercepts_BPk, backend.xp.sqrt(squares)


#: Problems of at most so many products (rows x rows x columns) are not worth a transfer.
_SMALL = 10**8
_MEASURED: dict[tuple[int, ...], str] = {}


@lru_cache(maxsize=8)
def get_solver(name: str) -> Solver:
    """Return the solver `numpy`, `torch:cpu` or `torch:cuda`. Raise ValueError for any other name."""
    if name == "numpy":
        return BatchSolver(numpy_backend(), max_batch=1)
    library, _, device = name.partition(":")
    if library != "torch" or device not in ("cpu", "cuda"):
        raise ValueError(f"unknown solver {name!r}; known: numpy, torch:cpu, torch:cuda")
    return BatchSolver(torch_backend(device), max_batch=512)


def choose_solver(problems: Sequence[Problem]) -> Solver:
    """Return the fastest solver for problems of this shape, measured once per shape and process.

    Without an accelerator, NumPy is used, because torch on a CPU was never faster (bench/probe.py measures both). All
    solvers agree within their tolerance, so the key of a result does not depend on the choice.
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
