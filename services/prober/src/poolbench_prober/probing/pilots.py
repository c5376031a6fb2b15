"""Pilots: which test instances a probe gets right, at several sizes of a set, in folds in rotation.

Samples, folds and noise depend on instances and seed alone, so that two pilots of the same instances are paired.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import PILOT_ANSWERS
from poolbench.errors import CellError, InputError
from poolbench.statuses import Status
from poolbench.steps.prober import PilotParams, TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing.mlp import fit_mlp
from poolbench_prober.probing.models import Problem, fit_converged
from poolbench_prober.probing.targets import Targets

#: Called with the number of probes that were fitted, and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fold:
    """One fold of a sample as test: rows of train, dev and test."""

    seed: int
    size: int
    number: int
    rows: dict[str, np.ndarray]


def pilot_answers(
    targets: Targets, vectors: PooledVectors, params: PilotParams, progress: Progress = lambda *_: None
) -> pa.Table:
    """Return PILOT_ANSWERS: one row for each seed, size and test instance, by instance id inside a fold.

    An instance without a vector, and a fold whose probe cannot be fitted, have null and the reason: the other folds
    are measured. The schema's metadata has the width of the vectors and the number of classes.

    Args:
        targets: Classes to predict, in the order of the vectors.
        vectors: One row per instance.

    Raises:
        InputError: Real values are to be predicted, which are neither right nor wrong, or a size is above the number
            of instances.
    """
    if targets.is_regression:
        raise InputError("a pilot counts right answers, so it needs labels; these instances have real values")
    if max(params.sizes) > len(targets.ids):
        raise InputError(f"sizes up to {max(params.sizes)} of {len(targets.ids)} instances; at most all of them")
    # By id, so that the order of the table changes nothing.
    order = np.argsort(np.array(targets.ids))
    targets, matrix_nD = targets.take(order), vectors.matrix_nW[order]
    usable, errors = vectors.usable[order], [vectors.errors[row] for row in order]
    missing = CellError(Status.NON_FINITE, "the instance has no finite vector")
    unusable: CellError | None = None
    try:
        vectors.require_usable(None)
    except CellError as error:
        unusable = error
    tables, num_all = list[pa.Table](), len(params.seeds) * len(params.sizes) * params.folds
    for seed in params.seeds:
        noisy_nD = _with_noise(matrix_nD, params.noise, seed)
        labels_n = _with_label_noise(targets, params.label_noise, seed)
        for fold in folds_of(targets, params, seed):
            progress(len(tables), num_all)
            used = {split: rows[usable[rows]] for split, rows in fold.rows.items()}
            predicted_n, failed = labels_n, unusable
            if failed is None:
                try:
                    predicted_n = _predictions(noisy_nD, labels_n, used, targets, params, seed)
                except CellError as error:
                    failed = error
            test = fold.rows["test"]
            reasons = [failed or (None if usable[row] else errors[row] or missing) for row in test]
            tables.append(_table(fold, used, targets, predicted_n[test] == targets.values[test], reasons))
    answers = pa.concat_tables(tables).combine_chunks()
    return answers.replace_schema_metadata({"width": str(matrix_nD.shape[1]), "classes": str(len(targets.classes))})


def folds_of(targets: Targets, params: PilotParams, seed: int) -> Iterator[Fold]:
    """Yield every fold of every sample of a seed. Groups are whole, and labels spread evenly.

    Samples and folds take whole groups, in a drawn order that takes turns between the labels of their first instances.
    """
    groups, first_rows, sizes = np.unique(targets.groups, return_index=True, return_counts=True)
    draw = np.random.default_rng((seed, 5)).permutation(len(groups))
    labels = targets.values[first_rows]
    place = np.empty(len(groups))
    for label in np.unique(labels):
        members = draw[labels[draw] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    turns = np.lexsort((labels, place))
    for size in params.sizes:
        sample = turns[: max(1, int(np.searchsorted(np.cumsum(sizes[turns]), size, side="right")))]
        by_label = sample[np.argsort(labels[sample], kind="stable")]
        if params.folds == 1:
            rows = np.flatnonzero(np.isin(targets.groups, groups[sample]))
            split = targets.take(rows).split(seed)
            yield Fold(seed, size, 0, {name: rows[split_rows] for name, split_rows in split.items()})
            continue
        fold_of_group = np.full(len(groups), -1)
        fold_of_group[by_label] = np.arange(len(by_label)) % params.folds
        fold_n = fold_of_group[np.searchsorted(groups, targets.groups)]
        for number in range(params.folds):
            dev = (number + 1) % params.folds
            is_train = (fold_n >= 0) & (fold_n != number) & (fold_n != dev)
            parts = {"train": is_train, "dev": fold_n == dev, "test": fold_n == number}
            yield Fold(seed, size, number, {name: np.flatnonzero(part) for name, part in parts.items()})


def _predictions(
    vectors_nD: np.ndarray,
    labels_n: np.ndarray,
    rows: dict[str, np.ndarray],
    targets: Targets,
    params: PilotParams,
    seed: int,
) -> np.ndarray:
    """Return the class that the probe of one fold predicts for each instance [n]; raise CellError without a probe."""
    for name in ("train", "dev", "test"):
        if len(rows[name]) < 2:
            reason = f"{len(rows[name])} instances in {name} of a fold; 2 are needed: take larger sizes or fewer folds"
            raise CellError(Status.TOO_FEW, reason)
    if len(np.unique(labels_n[rows["train"]])) < 2:
        only = targets.classes[int(labels_n[rows["train"][0]])]
        raise CellError(
            Status.ONE_CLASS, f"all {len(rows['train'])} training instances of a fold have the label {only!r}"
        )
    fold_rows = np.concatenate(list(rows.values()))
    ends = np.cumsum([len(part) for part in rows.values()])
    local = dict(zip(rows, np.split(np.arange(len(fold_rows)), ends[:-1]), strict=True))
    fit_params = TaskParams(c_values=params.c_values, tolerance=params.tolerance)
    problem = Problem(vectors_nD[fold_rows], labels_n[fold_rows], local, len(targets.classes), fit_params, seed)
    fitted = fit_converged(problem, params.c_values) if params.hidden is None else fit_mlp(problem, params.hidden)
    predicted_n = np.full(len(labels_n), -1)
    predicted_n[fold_rows] = fitted.predicted
    return predicted_n


def _with_noise(vectors_nD: np.ndarray, noise: float, seed: int) -> np.ndarray:
    if not noise:
        return vectors_nD
    return vectors_nD + noise * np.random.default_rng((seed, 3)).standard_normal(vectors_nD.shape)


def _with_label_noise(targets: Targets, share: float, seed: int) -> np.ndarray:
    """Return the labels that probes are fitted and chosen on [n]: a drawn share of them is of another class."""
    rng, num_classes = np.random.default_rng((seed, 4)), len(targets.classes)
    is_changed = rng.random(len(targets.values)) < share
    shift = rng.integers(1, max(2, num_classes), len(targets.values))
    return np.where(is_changed, (targets.values + shift) % num_classes, targets.values)


def _table(
    fold: Fold, used: dict[str, np.ndarray], targets: Targets, right: np.ndarray, reasons: list[CellError | None]
) -> pa.Table:
    columns: dict[str, Any] = {
        "seed": fold.seed,
        "size": fold.size,
        "fold": fold.number,
        "num_train": len(used["train"]),
        "num_dev": len(used["dev"]),
    }
    num_rows = len(right)
    arrays: dict[str, Any] = {
        name: pa.repeat(pa.scalar(value, pa.int64()), num_rows) for name, value in columns.items()
    }
    arrays |= {
        "instance_id": [targets.ids[row] for row in fold.rows["test"]],
        "right": [None if reason else bool(is_right) for is_right, reason in zip(right, reasons, strict=True)],
        "status": [str(reason.status) if reason else None for reason in reasons],
        "reason": [str(reason) if reason else None for reason in reasons],
    }
    return pa.table(arrays, schema=PILOT_ANSWERS)
