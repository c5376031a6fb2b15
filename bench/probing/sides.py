"""Both sides of the comparison, each in a process of its own, so that they share no threads and caches."""

from __future__ import annotations

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import Clock, Spent
from threadpoolctl import threadpool_limits

from poolbench_prober.solver.fits import fit_folds
from probing import reference
from probing.data import NUM_FOLDS, Protocol
from probing.reference import Way

_held: dict[str, Any] = {}


@dataclass(frozen=True)
class Side:
    """A process with the protocol in memory that fits one fold per request."""

    pool: ProcessPoolExecutor

    @classmethod
    def start(cls, work: Protocol, way: Way | None, num_threads: int | None) -> Side:
        """Start ours if `way` is None, else scikit-learn's, and run a first small fit."""
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_hold, initargs=(work, way, num_threads))
        pool.submit(_fit, 0, 4).result()
        return cls(pool)

    def fit(self, fold: int) -> tuple[np.ndarray, Spent]:
        """Return held-out scores [m, K] of all probes of a fold, and their time."""
        return self.pool.submit(_fit, fold, None).result()


def compare(work: Protocol, way: Way, converged: list[np.ndarray], num_threads: int | None = None) -> dict[str, Any]:
    """Fit all probes of all folds by both sides in alternating order; compare with the scores [m, K] at the optimum."""
    sides = {"ours": Side.start(work, None, num_threads), "scikit_learn": Side.start(work, way, num_threads)}
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    worst = dict.fromkeys(sides, 0.0)
    columns = np.arange(len(work.c_K))
    for fold in range(NUM_FOLDS):
        for name in sorted(sides, reverse=fold % 2 == 1):
            scores, took = sides[name].fit(fold)
            difference = reference.differences(work, fold, columns, converged[fold], scores)
            worst[name] = max(worst[name], float(difference.max()))
            spent[name].append(took)
        print(
            f"fold {fold}: " + ", ".join(f"{name} {took[-1].wall_s:.2f} s" for name, took in spent.items()), flush=True
        )
    for side in sides.values():
        side.pool.shutdown()
    figures = {"num_probes": NUM_FOLDS * len(columns), "largest_auroc_difference_from_the_optimum": worst}
    return figures | times(spent)


def times(spent: dict[str, list[Spent]]) -> dict[str, Any]:
    """Return the sums of both sides, and ratios by fold."""
    wall = {name: [one.wall_s for one in took] for name, took in spent.items()}
    cpu = {name: sum(one.cpu_s for one in took) for name, took in spent.items()}
    ratios = [theirs / ours for ours, theirs in zip(wall["ours"], wall["scikit_learn"], strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "wall_ratios": ratios,
        "wall_s": {name: sum(took) for name, took in wall.items()},
        "cpu_s": cpu,
        "cpu_ratio": cpu["scikit_learn"] / cpu["ours"],
    }


def _hold(work: Protocol, way: Way | None, num_threads: int | None) -> None:
    limits = None if num_threads is None else threadpool_limits(num_threads)
    _held.update(work=work, way=way, limits=limits)


def _fit(fold: int, num_columns: int | None) -> tuple[np.ndarray, Spent]:
    work, way = _held["work"], _held["way"]
    columns = np.arange(len(work.c_K))[:num_columns]
    if way is not None:
        return reference.fit_fold(work, fold, columns, way)
    labels_NK, c_K = work.labels_NK[:, columns], work.c_K[columns]
    clock = Clock()
    (fit,) = fit_folds(work.vectors_ND, labels_NK, c_K, [work.training[fold]])
    spent = clock.read()
    assert fit.converged.all()
    return fit.scores(work.vectors_ND[work.folds == fold]), spent
