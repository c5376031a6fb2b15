"""Pilots: which test instances a probe gets right, at several sizes of a set, in folds in rotation.

Samples, folds and noise depend on instances and seed alone, so that two pilots of the same instances are paired.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import PILOT_ANSWERS
from poolbench.errors import CellError, InputError
from poolbench.statistics.folds import SPLITS, drawn_splits
from poolbench.statuses import Status
from poolbench.steps.prober import PilotParams, TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing.codes import fit_by_code
from poolbench_prober.probing.mlp import fit_mlp
from poolbench_prober.probing.models import Problem, fit_converged, macro_f1
from poolbench_prober.probing.published import fit_searched
from poolbench_prober.probing.targets import Targets
from poolbench_prober.solver.rotation import fit_rotation

#: Called with the number of probes that were fitted, and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fold:
    """The rows of train, dev and test if one fold of a sample is the test fold."""

    seed: int
    size: int
    number: int
    rows: dict[str, np.ndarray]


def pilot_answers(
    targets: Targets, vectors: PooledVectors, params: PilotParams, progress: Progress = lambda *_: None
) -> pa.Table:
    """Return PILOT_ANSWERS: one row for each seed, size and test instance, by instance id inside a fold.

    Instances without a vector, and folds whose probe cannot be fitted, have null and a reason. Other folds are
    measured. The schema's metadata has the width of the vectors and the number of classes.

    Args:
        targets: Classes to predict, in the order of the vectors.
        vectors: One row per instance.

    Raises:
        InputError: The targets are real values, or a size is above the number of instances.
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
        probed = _Probed(noisy_nD, labels_n, targets.groups, targets.classes, params, seed)
        for _, size_folds in groupby(folds_of(targets, params, seed), key=lambda fold: fold.size):
            folds = list(size_folds)
            used = [{split: rows[usable[rows]] for split, rows in fold.rows.items()} for fold in folds]
            rotated = probed.together(used) if unusable is None else [None] * len(folds)
            for fold, rows, predicted in zip(folds, used, rotated, strict=True):
                progress(len(tables), num_all)
                test, failed = fold.rows["test"], unusable
                right = np.zeros(len(test), dtype=bool)
                if failed is None:
                    try:
                        predicted_n = probed.alone(rows) if predicted is None else predicted
                        right = predicted_n[test] == targets.values[test]
                    except CellError as error:
                        failed = error
                reasons = [failed or (None if usable[row] else errors[row] or missing) for row in test]
                tables.append(_table(fold, rows, targets, right, reasons))
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
            whole = targets.take(rows)
            splits = drawn_splits(whole.groups, seed) if whole.splits is None else whole.splits
            yield Fold(seed, size, 0, {name: rows[splits == name] for name in SPLITS})
            continue
        fold_of_group = np.full(len(groups), -1)
        fold_of_group[by_label] = np.arange(len(by_label)) % params.folds
        fold_n = fold_of_group[np.searchsorted(groups, targets.groups)]
        for number in range(params.folds):
            dev = (number + 1) % params.folds
            is_train = (fold_n >= 0) & (fold_n != number) & (fold_n != dev)
            parts = {"train": is_train, "dev": fold_n == dev, "test": fold_n == number}
            yield Fold(seed, size, number, {name: np.flatnonzero(part) for name, part in parts.items()})


#: Rows of a sample for each column of its vectors from which on all folds are fitted together.
_MOST_ROWS_ALONE = 2


@dataclass(frozen=True)
class _Probed:
    """What the probes of one seed are fitted on."""

    vectors_nD: np.ndarray
    labels_n: np.ndarray  # class numbers, with noise
    groups_n: np.ndarray
    classes: tuple[str, ...]
    params: PilotParams
    seed: int

    def alone(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Fit the probe of one fold. Return the predicted class of each instance [n], or raise CellError."""
        self.check(rows)
        fold_rows = np.concatenate(list(rows.values()))
        ends = np.cumsum([len(part) for part in rows.values()])
        local = dict(zip(rows, np.split(np.arange(len(fold_rows)), ends[:-1]), strict=True))
        params = TaskParams(c_values=self.params.c_values, tolerance=self.params.tolerance)
        vectors, labels = self.vectors_nD[fold_rows], self.labels_n[fold_rows]
        problem = Problem(vectors, labels, local, len(self.classes), params, self.seed)
        if self.params.protocol == "published":
            fitted = fit_searched(problem, self.params.hidden)
        elif self.params.code_length:
            fitted = fit_by_code(problem, self.groups_n[fold_rows])
        elif self.params.hidden is not None:
            fitted = fit_mlp(problem, self.params.hidden)
        else:
            fitted = fit_converged(problem, self.params.c_values)
        predicted_n = np.full(len(self.labels_n), -1)
        predicted_n[fold_rows] = fitted.predicted
        return predicted_n

    def together(self, folds: Sequence[Mapping[str, np.ndarray]]) -> list[np.ndarray | None]:
        """Return the answers of all folds of a sample from one fit, with None for folds that must be fitted alone.

        A fold must be fitted alone if it cannot be probed, if its probes did not converge, or if the sample has few
        rows, more than two classes, or another probe than a linear one whose C dev chooses.
        """
        left: list[np.ndarray | None] = [None] * len(folds)
        sample = np.unique(np.concatenate([rows for fold in folds for rows in fold.values()]))
        is_small = len(sample) < _MOST_ROWS_ALONE * self.vectors_nD.shape[1]
        is_other = self.params.hidden is not None or self.params.code_length or self.params.protocol == "published"
        if len(folds) == 1 or len(self.classes) > 2 or is_other or is_small:
            return left
        try:
            for fold in folds:
                self.check(fold)
        except CellError:
            return left
        vectors, labels = self.vectors_nD[sample], self.labels_n[sample]
        is_train_Fn = np.stack([np.isin(sample, fold["train"]) for fold in folds])
        c_values = sorted(self.params.c_values)
        try:
            fit = fit_rotation(vectors, labels, is_train_Fn, c_values, self.params.tolerance)
        except np.linalg.LinAlgError:  # numbers too large for their squares
            return left
        for number, fold in enumerate(folds):
            if not fit.converged_FP[number].all():
                continue
            scores_mP = vectors @ fit.weights_FPD[number].T + fit.intercepts_FP[number]
            predicted_mP, dev = (scores_mP > 0).astype(int), np.searchsorted(sample, fold["dev"])
            ones = np.ones((1, len(dev)))
            on_dev = [float(macro_f1(labels[dev], predicted_m[dev], ones)[0]) for predicted_m in predicted_mP.T]
            predicted_n = np.full(len(self.labels_n), -1)
            predicted_n[sample] = predicted_mP[:, int(np.argmax(on_dev))]  # of equal ones the smallest C
            left[number] = predicted_n
        return left

    def check(self, rows: Mapping[str, np.ndarray]) -> None:
        """Raise CellError for a fold that cannot be probed."""
        for name in ("train", "dev", "test"):
            if len(rows[name]) < 2:
                reason = f"{len(rows[name])} instances in {name} of a fold; 2 are needed: take larger sizes or fewer"
                raise CellError(Status.TOO_FEW, f"{reason} folds")
        if len(np.unique(self.labels_n[rows["train"]])) < 2:
            only = self.classes[int(self.labels_n[rows["train"][0]])]
            reason = f"all {len(rows['train'])} training instances of a fold have the label {only!r}"
            raise CellError(Status.ONE_CLASS, reason)


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
