"""Measures of code lengths: the cost of sending the training labels of each seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.probing.compression import (
    CodeLengths,
    Sender,
    cheapest,
    constant_predictor,
    dealt_folds,
    held_out_cost,
    laplace,
    send,
)
from poolbench_prober.probing.models import Fitted, Linear, Problem, fit_classifiers
from poolbench_prober.probing.targets import Targets
from poolbench_prober.probing.value_code import value_code_lengths

_ATTRIBUTES = {
    "probe.compression": "compression",
    "probe.compression_floor": "floor",
    "probe.compression_unregularised": "unregularised",
    "probe.compression_published": "released",
    "probe.online_bits": "online_bits",
    "probe.uniform_bits": "uniform_bits",
}
CODE_METRICS = tuple(_ATTRIBUTES)
_LINEAR_ONLY = "code lengths are those of linear probes, and the probe has a hidden layer"
_NOT_RELEASED = "the released code has no code length of real values"


def code_lengths(
    vectors_nD: np.ndarray,
    codes: np.ndarray,
    num_classes: int,
    groups: np.ndarray,
    *,
    c_values: Sequence[float],
    plain_c: float,
    tolerance: float,
    seed: int,
) -> CodeLengths:
    """Compute code lengths of the labels in one fixed shuffle of the groups.

    Args:
        codes: Class numbers [n].
        num_classes: K of the uniform code.
        groups: Group of each instance, from 0 [n].
        c_values: Values of C to choose from, in addition to the constant predictor.
        seed: Seed of the shuffle and of the inner folds.
    """

    def sender(sent: np.ndarray) -> Sender:
        return ClassSender(vectors_nD[sent], codes[sent], num_classes, groups[sent], tolerance, seed)

    settings: dict[str, Any] = {"c_values": c_values, "plain_c": plain_c, "seed": seed}
    return send(vectors_nD, codes, num_classes, groups, sender, **settings, released=True)


class ClassSender:
    """The knowledge of classes after some labels were sent."""

    def __init__(
        self,
        vectors_nD: np.ndarray,
        codes: np.ndarray,
        num_classes: int,
        groups: np.ndarray,
        tolerance: float,
        seed: int,
    ) -> None:
        self.vectors_nD, self.codes, self.groups = vectors_nD, codes, groups
        self.tolerance, self.seed = tolerance, seed
        self.seen = np.unique(codes)
        self.frequencies = laplace(np.bincount(codes, minlength=num_classes), len(np.unique(groups)))
        self.constant = constant_predictor(codes, num_classes, groups)
        self.fits: dict[float, Linear] = {}

    def log_probabilities(self, block_mD: np.ndarray, c: float | None) -> np.ndarray:
        """Return log-probabilities as in `Sender`. A class not seen yet has its probability by Laplace's rule."""
        if c is None or not self.converged(c):
            return np.tile(self.constant, (len(block_mD), 1))
        log_p = np.tile(self.frequencies, (len(block_mD), 1))
        log_share = np.log(np.exp(self.frequencies[self.seen]).sum())
        log_p[:, self.seen] = log_share + self.fits[c].log_probabilities(block_mD)
        return log_p

    def converged(self, c: float) -> bool:
        """Return whether the probe converged. With fewer than two classes there is no probe and the result is false."""
        if len(self.seen) < 2:
            return False
        self._fit([c])
        return self.fits[c].converged

    def _fit(self, c_values: Sequence[float]) -> None:
        lacking = [c for c in c_values if c not in self.fits]
        if lacking and len(self.seen) > 1:
            codes = np.searchsorted(self.seen, self.codes)
            classifiers = fit_classifiers(self.vectors_nD, codes, len(self.seen), lacking, self.tolerance)
            self.fits |= dict(zip(lacking, classifiers, strict=True))

    def choose(self, c_values: Sequence[float]) -> float | None:
        """Return the C with the shortest code of held-out labels, or None for the constant predictor.

        The inner folds do not split groups.
        """
        folds = dealt_folds(self.codes, self.groups, self.seed)
        if folds is None:
            return None
        cost_nC = np.zeros((len(self.codes), 1 + len(c_values)))
        cost_nC[:, 0] = held_out_cost(self.codes, folds, len(self.constant), self.groups)
        for fold in np.unique(folds):
            held = folds == fold
            rest = self.vectors_nD[~held], self.codes[~held], len(self.constant), self.groups[~held]
            inner = ClassSender(*rest, self.tolerance, self.seed)
            inner._fit(c_values)  # all at once
            for number, c in enumerate(c_values, 1):
                log_p = inner.log_probabilities(self.vectors_nD[held], c)
                cost_nC[held, number] = -log_p[np.arange(held.sum()), self.codes[held]]
        return cheapest(cost_nC, c_values, self.groups)


def fit_by_code(problem: Problem, groups_n: np.ndarray) -> Fitted:
    """Return the linear probe with the shortest code of the training labels, which dev does not choose.

    If class frequencies have a shorter code than any probe, the most frequent class is predicted.

    Args:
        groups_n: Group of each instance, which inner folds keep whole.
    """
    rows, params = problem.rows["train"], problem.params
    labels = problem.vectors_nD[rows], problem.values[rows], problem.num_classes, groups_n[rows]
    sender = ClassSender(*labels, params.tolerance, problem.seed)
    c = sender.choose(params.compression_c)
    return Fitted(sender.log_probabilities(problem.vectors_nD, c).argmax(axis=1), {"C": c})


def code_measures(
    targets: Targets,
    matrix_nD: np.ndarray,
    params: TaskParams,
    sent: Sequence[tuple[np.ndarray, int]],
    fields: dict[str, Any],
) -> list[Measure]:
    """Return the metrics `CODE_METRICS` as means over the seeds, or [] if code lengths are not requested.

    Args:
        sent: Rows that are sent, and the seed of their order, for each seed.
    """
    if not params.compression:
        return []
    groups = np.unique(targets.groups[np.concatenate([rows for rows, _ in sent])])
    fields = {**fields, "n": int(np.mean([len(rows) for rows, _ in sent])), "num_groups": len(groups)}
    if params.hidden is not None:
        return [Measure.null(name, Status.NOT_IMPLEMENTED, _LINEAR_ONLY, **fields) for name in CODE_METRICS]
    try:
        lengths = [_lengths(targets.take(rows), matrix_nD[rows], params, seed) for rows, seed in sent]
    except CellError as error:
        return [Measure.failed(name, error, **fields) for name in CODE_METRICS]
    return [_measure(name, lengths, fields) for name in CODE_METRICS]


def _lengths(targets: Targets, matrix_nD: np.ndarray, params: TaskParams, seed: int) -> CodeLengths:
    groups = np.unique(targets.groups, return_inverse=True)[1]
    settings: dict[str, Any] = {
        "c_values": params.compression_c,
        "plain_c": params.primary_c,
        "tolerance": params.tolerance,
        "seed": seed,
    }
    if targets.is_regression:
        return value_code_lengths(matrix_nD, targets.values, groups, **settings)
    return code_lengths(matrix_nD, targets.values, len(targets.classes), groups, **settings)


def _measure(name: str, lengths: Sequence[CodeLengths], fields: dict[str, Any]) -> Measure:
    optional_values = [getattr(seed_lengths, _ATTRIBUTES[name]) for seed_lengths in lengths]
    if None in optional_values:
        return Measure.null(name, Status.NOT_IMPLEMENTED, _NOT_RELEASED, **fields)
    values = [float(value) for value in optional_values]
    details: dict[str, Any] = {"values": values}
    if name == "probe.compression":
        details["chosen_C"] = [list(seed_lengths.c_of_blocks) for seed_lengths in lengths]
    if name == "probe.compression_unregularised":
        details["blocks_by_the_constant_predictor"] = [seed_lengths.num_replaced for seed_lengths in lengths]
    if name == "probe.uniform_bits":
        details["num_classes"] = [seed_lengths.num_classes for seed_lengths in lengths]
    return Measure.of(name, float(np.mean(values)), details=details, **fields)
