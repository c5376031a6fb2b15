"""The probes of a task: one for each seed, and one of control labels beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import predictions_schema, table_from_rows
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import published
from poolbench_prober.probing.mlp import fit_mlp
from poolbench_prober.probing.models import Fitted, Problem, fit_converged
from poolbench_prober.probing.targets import Targets, control_values


@dataclass(frozen=True)
class Outcome:
    """The results of the probe of one seed and of its control probe."""

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
    def of(cls, targets: Targets, vectors_nD: np.ndarray, params: TaskParams, seed: int) -> "Outcome":
        """Split the instances, fit the probe and its control, and predict. Raise CellError if a step is impossible."""
        rows = targets.split(seed)
        problem = Problem(vectors_nD, targets.values, rows, len(targets.classes), params, seed)
        fitted = _fit(problem, params.choices(len(rows["dev"])))
        control_truth: np.ndarray | None = None
        control: np.ndarray | CellError | None = None
        if params.control:
            over_all = params.control == "permuted" and params.protocol != "corrected"
            kind = "permuted_all" if over_all else params.control
            control_truth = control_values(targets, rows["train"], kind, seed)
            # The control probe has the C of the probe itself.
            try:
                choice = [fitted.details["C"]] if "C" in fitted.details else []
                control = _fit(problem._replace(values=control_truth), choice).predicted
            except CellError as error:
                control = error
        seen = targets.seen(rows["train"])
        return cls(seed, rows, targets.values, fitted.predicted, control_truth, control, seen, fitted.details)


def _fit(problem: Problem, c_values: Sequence[float]) -> Fitted:
    """Return the probe that the parameters ask for; of a linear one, C is chosen from some values."""
    if problem.params.hidden is not None:
        return fit_mlp(problem, problem.params.hidden)
    return fit_converged(problem, c_values) if problem.params.protocol == "corrected" else published.fit(problem)


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
    def of(cls, targets: Targets, vectors: PooledVectors, params: TaskParams) -> "TaskProbes":
        """Fit the probes of all seeds.

        Each seed draws its own split (if none is given), control labels and shuffles.

        Args:
            targets: Instances to predict, in the order of the vectors.
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


def predictions_table(probes: TaskProbes) -> pa.Table:
    """Return the predictions of every seed for dev and test, and the instances without a vector. If every probe failed,
    the table has these instances alone.

    Rows are in the order of seeds, splits and instance ids, so that no order of inputs changes the table.
    """
    targets, usable = probes.targets, probes.kept
    schema = predictions_schema(pa.float64() if targets.is_regression else pa.string())
    left_out = [_left_out(targets, row, error) for row, error in probes.left_out().items()]
    tables = [_of_split(outcome, split, usable, schema) for outcome in probes.outcomes for split in ("dev", "test")]
    tables.append(table_from_rows(sorted(left_out, key=lambda row: row["instance_id"]), schema))
    return pa.concat_tables(tables).combine_chunks()


def _of_split(outcome: Outcome, split: str, targets: Targets, schema: pa.Schema) -> pa.Table:
    rows = np.array(sorted(outcome.rows[split], key=lambda row: targets.ids[row]), dtype=int)
    control = None if isinstance(outcome.control, CellError) else outcome.control
    answers = {
        "truth": outcome.truth,
        "predicted": outcome.predicted,
        "control_truth": outcome.control_truth,
        "control_predicted": control,
    }
    columns: dict[str, Any] = {name: _named(targets, values, rows) for name, values in answers.items()}
    columns |= {
        "instance_id": [targets.ids[row] for row in rows],
        "split": [split] * len(rows),
        "seed": [outcome.seed] * len(rows),
        "seen": None if outcome.seen is None else outcome.seen[rows],
    }
    filled = {name: column for name, column in columns.items() if column is not None}
    arrays = [pa.array(filled.get(field.name, [None] * len(rows)), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _named(targets: Targets, values: np.ndarray | None, rows: np.ndarray) -> Any:
    """Return the labels of class numbers, or real values as they are."""
    if values is None or targets.is_regression:
        return None if values is None else values[rows]
    return [targets.classes[code] for code in values[rows]]


def _left_out(targets: Targets, row: int, error: CellError) -> dict[str, Any]:
    value = targets.values[row]
    return {
        "instance_id": targets.ids[row],
        "split": None if targets.splits is None else str(targets.splits[row]),
        "truth": float(value) if targets.is_regression else targets.classes[value],
        "status": str(error.status),
        "reason": str(error),
    }
