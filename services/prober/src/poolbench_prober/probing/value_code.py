"""Online code length of real values: bins of equal mass, sent with the mass that a Gaussian puts between their edges.

The bins are known to sender and receiver, like the classes of a classification; the bin of each value is sent.
A ridge regression on all values sent before gives the Gaussian's mean. The error of the same regression in inner folds
gives its standard deviation, so that an overfitted probe is not trusted.

Reference: Voita & Titov (2020), section 3.2, who have classes only; Rissanen (1986), "Stochastic complexity and
modeling" (predictive codes of regressions).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import ndtr

from poolbench_prober.probing.compression import (
    CodeLengths,
    Sender,
    cheapest,
    constant_predictor,
    dealt_folds,
    held_out_cost,
    send,
)
from poolbench_prober.probing.models import Linear, fit_regressions

MAX_BINS = 16


@dataclass(frozen=True)
class Bins:
    """Bins of real values with ascending inner edges [K - 1]. No value lies on an edge."""

    edges: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, max_bins: int = MAX_BINS) -> Self:
        """Return one bin per distinct value if there are at most `max_bins`, or else bins of nearly equal mass.

        Edges lie half-way between neighbouring distinct values, as near to the quantiles as ties allow. If one value
        spans several quantiles, there are fewer than `max_bins` bins.
        """
        distinct, counts = np.unique(values, return_counts=True)
        between = (distinct[:-1] + distinct[1:]) / 2
        if len(distinct) <= max_bins:
            return cls(between)
        below = np.cumsum(counts)[:-1]  # values below each possible edge
        ranks = len(values) * np.arange(1, max_bins) / max_bins
        nearest = np.abs(below[:, None] - ranks).argmin(axis=0)
        return cls(between[np.unique(nearest)])

    @property
    def count(self) -> int:
        """Return number K of bins."""
        return len(self.edges) + 1

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Return bin of each value [n]."""
        return np.searchsorted(self.edges, values)

    def masses(self, means_m: np.ndarray, deviations: np.ndarray | float) -> np.ndarray:
        """Return the mass of a Gaussian in each bin [m, K]. The first and the last bin are unbounded outwards."""
        scaled = (self.edges - means_m[:, None]) / np.broadcast_to(deviations, means_m.shape)[:, None]
        outer = np.full((len(means_m), 1), np.inf)
        low, high = np.hstack([-outer, scaled]), np.hstack([scaled, outer])
        # In the upper half, differences of the upper tails: those of the lower tails would be differences of ones.
        upper = low > 0
        return np.asarray(np.where(upper, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)))


def value_code_lengths(
    vectors_nD: np.ndarray,
    values: np.ndarray,
    groups: np.ndarray,
    *,
    c_values: Sequence[float],
    plain_c: float,
    tolerance: float,
    seed: int,
) -> CodeLengths:
    """Compute code lengths of the bins of real values in one fixed shuffle of the groups.

    Args:
        values: Real values [n], at least two different ones.
        groups: Group of each instance, from 0 [n].
        c_values: Values of C to choose from, in addition to the constant predictor. Ridge uses alpha = 1 / C.
        seed: Seed of the shuffle and of the inner folds.
    """
    bins = Bins.of(values)
    codes = bins.codes(values)

    def sender(sent: np.ndarray) -> Sender:
        return ValueSender(vectors_nD[sent], values[sent], bins, groups[sent], (*c_values, plain_c), tolerance, seed)

    settings: dict[str, Any] = {"c_values": c_values, "plain_c": plain_c, "seed": seed}
    return send(vectors_nD, codes, bins.count, groups, sender, **settings, released=False)


class ValueSender:
    """The knowledge of real values after some were sent; all regularisations are fitted at once."""

    def __init__(
        self,
        vectors_nD: np.ndarray,
        values: np.ndarray,
        bins: Bins,
        groups: np.ndarray,
        c_values: Sequence[float],
        tolerance: float,
        seed: int,
    ) -> None:
        self.bins, self.values, self.codes, self.groups = bins, values, bins.codes(values), groups
        self.constant = constant_predictor(self.codes, bins.count, groups)
        self.c_values = tuple(dict.fromkeys(c_values))
        self.folds = dealt_folds(self.codes, groups, seed)
        self.fits: dict[float, Linear] = {}
        if self.folds is None:
            return
        self.held_out_nC = _held_out(vectors_nD, values, self.folds, self.c_values, tolerance)
        self.error_nC = np.abs(self.held_out_nC - values[:, None])
        fits = fit_regressions(vectors_nD, values, self.c_values, tolerance)
        self.fits = dict(zip(self.c_values, fits, strict=True))

    def converged(self, c: float) -> bool:
        """Return whether the probe converged, also in the inner folds, which give the standard deviation."""
        return c in self.fits and self.fits[c].converged and bool(np.isfinite(self.error_nC[:, self._column(c)]).all())

    def log_probabilities(self, block_mD: np.ndarray, c: float | None) -> np.ndarray:
        """Return log-probabilities as `Sender` does."""
        if c is None or not self.converged(c):
            return np.tile(self.constant, (len(block_mD), 1))
        deviation = self._deviation(self.error_nC[:, self._column(c)])
        masses_mK = self.bins.masses(self.fits[c].scores(block_mD)[:, 0], deviation)
        return with_share(masses_mK, self.constant, len(self.values))

    def choose(self, c_values: Sequence[float]) -> float | None:
        """Return the C with the shortest code in the inner folds, or None for the constant predictor.

        A fold is sent with the bins and errors of the other folds, each from a probe that was fitted without it.
        """
        if self.folds is None:
            return None
        usable = [c for c in c_values if self.converged(c)]
        cost_nC = np.zeros((len(self.values), 1 + len(usable)))
        cost_nC[:, 0] = held_out_cost(self.codes, self.folds, self.bins.count, self.groups)
        for fold in np.unique(self.folds):
            held = np.flatnonzero(self.folds == fold)
            held_codes, rest = self.codes[held], self.folds != fold
            constant = constant_predictor(self.codes[rest], self.bins.count, self.groups[rest])
            for number, c in enumerate(usable, 1):
                column = self._column(c)
                masses_mK = self.bins.masses(
                    self.held_out_nC[held, column], self._deviation(self.error_nC[rest, column])
                )
                cost_nC[held, number] = -with_share(masses_mK, constant, rest.sum())[np.arange(len(held)), held_codes]
        return cheapest(cost_nC, usable, self.groups)

    def _column(self, c: float) -> int:
        return self.c_values.index(c)

    def _deviation(self, errors_n: np.ndarray) -> float:
        """Return root mean square error; never 0, where a Gaussian has no density."""
        return max(float(np.sqrt(np.square(errors_n).mean())), 1e-9 * float(self.values.std()))


def with_share(masses_mK: np.ndarray, constant_K: np.ndarray, num_sent: int) -> np.ndarray:
    """Return the log of the masses, 1 part in n + 1 given to the constant predictor, so that outliers cost finitely."""
    share = 1 / (num_sent + 1)
    return np.asarray(np.log((1 - share) * masses_mK + share * np.exp(constant_K)))


def _held_out(
    vectors_nD: np.ndarray, values: np.ndarray, folds: np.ndarray, c_values: Sequence[float], tolerance: float
) -> np.ndarray:
    """Return the predictions by the probes of the other folds [n, C]; NaN for a probe that did not converge."""
    predictions_nC = np.full((len(values), len(c_values)), np.nan)
    for fold in np.unique(folds):
        held = folds == fold
        for column, fit in enumerate(fit_regressions(vectors_nD[~held], values[~held], c_values, tolerance)):
            if fit.converged:
                predictions_nC[held, column] = fit.scores(vectors_nD[held])[:, 0]
    return predictions_nC
