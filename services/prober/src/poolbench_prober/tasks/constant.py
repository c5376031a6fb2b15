"""Predictors of labels without vectors, and when a probe is better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

INNER_FOLDS = 5


def laplace(counts_K: np.ndarray) -> np.ndarray:
    """Return natural log of the class frequencies by Laplace's rule of succession [K]."""
    return np.asarray(np.log((counts_K + 1) / (counts_K.sum() + len(counts_K))))


def constant_predictor(counts_K: np.ndarray) -> np.ndarray:
    """Return log-probabilities [K]: class frequencies by Laplace's rule where they save bits, else uniform.

    Frequencies of K equal classes only cost: about (K - 1) / 2 nats per block to learn what was known. They must
    save more than one standard error on the labels sent, each predicted from the others.
    """
    counts, num_classes, total = counts_K.astype(np.float64), len(counts_K), int(counts_K.sum())
    uniform = np.full(num_classes, -np.log(num_classes))
    if total < 2:
        return uniform
    # A label predicted from the others has been seen one time less: (c - 1 + 1) / (n - 1 + K).
    saved_K = np.log(np.maximum(counts, 1) * num_classes / (total - 1 + num_classes))
    mean = float(counts @ saved_K / total)
    margin = np.sqrt(counts @ (saved_K - mean) ** 2 / total) / np.sqrt(total)
    return laplace(counts_K) if mean > margin else uniform


def held_out_cost(codes: np.ndarray, folds: np.ndarray, num_classes: int) -> np.ndarray:
    """Return each label's cost by the frequencies of the other folds, or uniformly if that is cheaper in total [n].

    Stratified folds share their frequencies, which favours every predictor that learns them. A probe learns them too,
    so it is compared with these and not with the uniform predictor alone.
    """
    cost_n = np.empty(len(codes))
    for fold in np.unique(folds):
        held = folds == fold
        cost_n[held] = -laplace(np.bincount(codes[~held], minlength=num_classes))[codes[held]]
    uniform = np.log(num_classes)
    return cost_n if cost_n.mean() < uniform else np.full(len(codes), uniform)


def cheapest(cost_nC: np.ndarray, c_values: Sequence[float]) -> float | None:
    """Return the C of the lowest cost if it saves more than one standard error on the constant predictor (column 0).

    Without the margin the best of many useless probes wins by luck, and random labels cost up to 2 % too much.

    Reference: Breiman et al. (1984), Classification and regression trees, 3.4.3 (the one-standard-error rule).
    """
    best = int(np.argmin(cost_nC.sum(axis=0)))
    saved = cost_nC[:, 0] - cost_nC[:, best]
    margin = saved.std() / np.sqrt(len(saved))
    return c_values[best - 1] if best and saved.mean() > margin else None


def dealt_folds(codes: np.ndarray, seed: int) -> np.ndarray | None:
    """Return inner folds with evenly distributed classes; None where at most one class has two members."""
    counts = np.bincount(codes)
    if (counts >= 2).sum() < 2:
        return None
    order = np.random.default_rng((seed, len(codes))).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    folds = np.empty(len(codes), dtype=int)
    folds[order] = np.arange(len(codes)) % min(INNER_FOLDS, len(codes))
    return folds
