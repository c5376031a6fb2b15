"""Online code length of classes: a classifier of all labels sent gives the probabilities of the next block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
from poolbench_prober.probing.models import Linear, fit_classifiers


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
    """Return code lengths of the labels in one fixed shuffle of the groups.

    Args:
        codes: Class numbers [n].
        num_classes: K of the uniform code.
        groups: Group of each instance, from 0 [n].
        c_values: Regularisations to choose from beside the constant predictor.
        seed: Of the shuffle and the inner folds.
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
        """Return log-probabilities as `Sender`; a class not seen yet keeps its probability by Laplace's rule."""
        if c is None or not self.converged(c):
            return np.tile(self.constant, (len(block_mD), 1))
        log_p = np.tile(self.frequencies, (len(block_mD), 1))
        log_share = np.log(np.exp(self.frequencies[self.seen]).sum())
        log_p[:, self.seen] = log_share + self.fits[c].log_probabilities(block_mD)
        return log_p

    def converged(self, c: float) -> bool:
        """Return whether the probe converged; with one class there is none."""
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
        """Return the C with the shortest code in inner folds of whole groups; None for the constant predictor."""
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
