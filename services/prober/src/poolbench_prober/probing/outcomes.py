"""The probes of a task: one for each seed, and one of control labels beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import converged, published
from poolbench_prober.probing.problem import Fitted, Problem
from poolbench_prober.probing.targets import Targets, control_values


@dataclass(frozen=True)
class Outcome:
    """The probe of one seed, and its control."""

    seed: int
    rows: Mapping[str, np.ndarray]  # rows of train, dev and test
    truth: np.ndarray  # class numbers or values [n]
    predicted: np.ndarray  # the same as the probe predicts them [n]
    control_truth: np.ndarray | None  # control labels [n]; None without control task
    control: np.ndarray | CellError | None  # the control probe's predictions [n], or why there are none
    seen: np.ndarray | None  # whether the whole input of an instance is one of train [n]; None where inputs are unknown
    details: dict[str, Any]  # how the probe was fitted

    @property
    def test(self) -> np.ndarray:
        """Return the rows that are scored."""
        return self.rows["test"]

    @classmethod
    def of(cls, targets: Targets, vectors_nD: np.ndarray, params: TaskParams, seed: int) -> Outcome:
        """Split, fit and predict; raise CellError if a part is impossible."""
        rows = targets.split(seed)
        problem = Problem(vectors_nD, targets.values, rows, len(targets.classes), params, seed)
        corrected = params.protocol == "corrected"
        fitted = converged.fit(problem, params.choices(len(rows["dev"]))) if corrected else published.fit(problem)
        control_truth: np.ndarray | None = None
        control: np.ndarray | CellError | None = None
        if params.control:
            kind = "permuted_all" if params.control == "permuted" and not corrected else params.control
            control_truth = control_values(targets, rows["train"], kind, seed)
            control = _control(problem._replace(values=control_truth), fitted)
        seen = targets.seen(rows["train"])
        return cls(seed, rows, targets.values, fitted.predicted, control_truth, control, seen, fitted.details)


def _control(problem: Problem, fitted: Fitted) -> np.ndarray | CellError:
    """Return the predictions of the control probe, with the C of the probe itself, or why there are none."""
    try:
        if problem.params.protocol == "corrected":
            return converged.fit(problem, [fitted.details["C"]]).predicted
        return published.fit(problem).predicted
    except CellError as error:
        return error


@dataclass(frozen=True)
class TaskProbes:
    """All probes of one task on one set of vectors."""

    targets: Targets  # all instances
    vectors: PooledVectors  # their vectors [n]
    params: TaskParams
    rows: np.ndarray  # instances with a vector; the outcomes are about these
    outcomes: tuple[Outcome, ...]  # one for each seed; empty where there is an error
    error: CellError | None = None  # what rules all of them out

    @classmethod
    def of(cls, targets: Targets, vectors: PooledVectors, params: TaskParams) -> TaskProbes:
        """Fit the probes of all seeds.

        Several seeds draw several splits (where none is given), control labels and shuffles.

        Args:
            targets: What to predict, in the order of the vectors.
            vectors: One row per instance.
        """
        vectors = vectors.in_float16() if params.float16 else vectors
        rows = np.flatnonzero(vectors.usable)
        try:
            vectors.require_usable(None)
            usable, matrix_nD = targets.take(rows), vectors.matrix_nW[rows]
            outcomes = tuple(Outcome.of(usable, matrix_nD, params, seed) for seed in params.seeds)
        except CellError as error:
            return cls(targets, vectors, params, rows, (), error)
        return cls(targets, vectors, params, rows, outcomes)

    @property
    def kept(self) -> Targets:
        """Return the instances with a vector."""
        return self.targets.take(self.rows)

    def left_out(self) -> dict[int, CellError]:
        """Return why each of the other rows has no vector."""
        unknown = CellError(Status.NON_FINITE, "the instance has no finite vector")
        return {int(row): self.vectors.errors[row] or unknown for row in np.flatnonzero(~self.vectors.usable)}
