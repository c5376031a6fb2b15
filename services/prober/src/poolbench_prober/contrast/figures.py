"""Measures of an autoencoder from the scores of rows and subjects, with intervals from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics import group_mean_resamples, percentile_interval
from poolbench.statuses import Status
from poolbench_prober.contrast.scores import RowScores

CONTRASTIVE, INDEPENDENT, INTERPRETABILITY = MAIN = ("ce.contrastive", "ce.independent", "ce.interpretability")
MARKED, SUM = "ce.independent.marked", "ce.interpretability.sum"
CONTRASTIVE_EXCESS, INTERPRETABILITY_EXCESS = "ce.contrastive.excess", "ce.interpretability.excess"
HELD_OUT, PAPER = "ce.held_out", "ce.paper"
L0, UNEXPLAINED, DEAD_SHARE, NUM_FEATURES = "ce.l0", "ce.unexplained_variance", "ce.dead_share", "ce.num_features"
_UP_TO_PAPER = (*MAIN, CONTRASTIVE_EXCESS, INTERPRETABILITY_EXCESS, HELD_OUT, MARKED, SUM, L0, UNEXPLAINED, DEAD_SHARE)
#: The metrics of each protocol, in order.
CORRECTED, PUBLISHED = (*_UP_TO_PAPER, NUM_FEATURES), (*_UP_TO_PAPER, PAPER, NUM_FEATURES)
#: How much a feature per token costs in the score of the paper.
_PAPER_L0 = 0.25


@dataclass(frozen=True)
class Found:
    """What is known of the rows that are used.

    Attributes:
        scores: Scores of each row [n], as they are reported.
        held_out: Share of right pairs of each subject [S]; NaN with one row.
        codes: Subject of each row [n].
        active_tokens: Features that are not zero, summed over the tokens of both stories [n]; NaN if unknown.
        tokens: Tokens of both stories [n].
        squared_error: Of both stories [n]; NaN if unknown.
        squared_norm: Likewise.
        dead_share: Share of the features that are zero in every story.
        num_features: Number of features F.
        published: Whether a mean is over rows; else over subjects, each the mean over its rows.
    """

    scores: RowScores
    held_out: np.ndarray
    codes: np.ndarray
    active_tokens: np.ndarray
    tokens: np.ndarray
    squared_error: np.ndarray
    squared_norm: np.ndarray
    dead_share: float
    num_features: int
    published: bool

    @property
    def num_subjects(self) -> int:
        """Return the number S of subjects."""
        return len(self.held_out)


class Figures:
    """The measures of one autoencoder.

    Entry 0 of a list of samples is the value, and the others are its resamples. All figures share their resamples.
    """

    def __init__(self, found: Found, num_bootstrap: int, seed: int, fields: dict[str, Any]) -> None:
        self._found = found
        self._drawn: dict[str, Any] = {"num_resamples": num_bootstrap, "seed": seed}
        self._fields = fields

    def measures(self) -> Iterator[Measure]:
        """Yield each measure of the protocol."""
        scores, error = self._found.scores, self._no_score()
        yield self._mean(CONTRASTIVE, scores.contrastive, error)
        yield self._mean(INDEPENDENT, scores.independent, error or self._no_others())
        yield self._mean(INTERPRETABILITY, scores.interpretability, error or self._no_others())
        yield self._excess(CONTRASTIVE_EXCESS, scores.contrastive, scores.null_contrastive, error)
        null = scores.null_interpretability
        no_null = error or self._no_others()
        yield self._excess(INTERPRETABILITY_EXCESS, scores.interpretability, null, no_null)
        yield self._held_out(error)
        yield self._mean(MARKED, scores.marked, error or self._no_marks())
        yield self._mean(SUM, scores.contrastive + scores.marked, error or self._no_marks())
        yield self._ratio(L0, self._found.active_tokens, self._found.tokens)
        yield self._ratio(UNEXPLAINED, self._found.squared_error, self._found.squared_norm)
        yield Measure.of(DEAD_SHARE, self._found.dead_share, **{**self._fields, "n": self._found.num_features})
        if self._found.published:
            yield self._paper(error)
        yield num_features(self._found.num_features, self._fields)

    def _samples(self, values_nC: np.ndarray) -> np.ndarray:
        """Return the mean of each column, and its resamples [1 + R, C]. NaN is a row without a value."""
        groups = self._found.codes
        values, known = values_nC, np.isfinite(values_nC).any(axis=0)
        if not self._found.published:
            values, groups = _subject_means(values_nC, groups), np.arange(self._found.num_subjects)
        means = np.where(known, np.nansum(values, axis=0) / np.maximum(1, np.isfinite(values).sum(axis=0)), np.nan)
        return np.vstack([means, group_mean_resamples(values, groups, **self._drawn)])

    def _sums(self, values_nC: np.ndarray) -> np.ndarray:
        """Return the sum of each column over the rows up to a factor that they share, and its resamples [1 + R, C]."""
        resamples = group_mean_resamples(values_nC, self._found.codes, **self._drawn)
        return np.vstack([values_nC.mean(axis=0), resamples])

    def _mean(self, metric: str, values_n: np.ndarray, error: CellError | None) -> Measure:
        rows = np.flatnonzero(np.isfinite(values_n))
        fields = self._of_rows(rows)
        if error is not None or not len(rows):
            return Measure.failed(metric, error or _NOTHING, **fields)
        units = values_n[rows] if self._found.published else _subject_means(values_n[:, None], self._found.codes)
        units = units[np.isfinite(units)]
        spread = {"standard_error": float(units.std(ddof=1) / np.sqrt(len(units)))} if len(units) > 1 else {}
        fields["details"] = {**fields["details"], **spread}
        return self._measure(metric, self._samples(values_n[:, None])[:, 0], fields)

    def _excess(self, metric: str, values_n: np.ndarray, null_n: np.ndarray, error: CellError | None) -> Measure:
        """Return mean score over mean null score, minus 1, of the rows that have both."""
        both = np.isfinite(values_n) & np.isfinite(null_n)
        fields = self._of_rows(np.flatnonzero(both))
        if error is None and not both.any():
            error = CellError(Status.TOO_FEW, "no subject has two pairs of stories")
        if error is not None:
            return Measure.failed(metric, error, **fields)
        samples = self._samples(np.where(both[:, None], np.stack([values_n, null_n], axis=1), np.nan))
        if samples[0, 1] == 0:
            reason = "two stories of the same side have the same features throughout: nothing to compare with"
            return Measure.null(metric, Status.COLLAPSED, reason, **fields)
        fields["details"] = {**fields["details"], "null": float(samples[0, 1])}
        return self._measure(metric, _over(samples[:, 0], samples[:, 1]) - 1, fields)

    def _held_out(self, error: CellError | None) -> Measure:
        values = self._found.held_out
        known = np.isfinite(values)
        fields = self._of_rows(np.flatnonzero(known[self._found.codes]))
        if error is None and not known.any():
            error = CellError(Status.TOO_FEW, "no subject has two pairs of stories")
        if error is not None:
            return Measure.failed(HELD_OUT, error, **fields)
        resamples = group_mean_resamples(values[:, None], **self._drawn)[:, 0]
        return self._measure(HELD_OUT, np.concatenate([[values[known].mean()], resamples]), fields)

    def _ratio(self, metric: str, above_n: np.ndarray, below_n: np.ndarray) -> Measure:
        """Return the sum of one column over the sum of another."""
        fields = self._of_rows(np.arange(len(above_n)))
        if not np.isfinite([above_n, below_n]).all():
            return Measure.null(metric, Status.NOT_IMPLEMENTED, "the features came without this figure", **fields)
        sums = self._sums(np.stack([above_n, below_n], axis=1))
        if sums[0, 1] == 0:
            return Measure.null(metric, Status.COLLAPSED, "the states of the stories are all equal", **fields)
        return self._measure(metric, _over(sums[:, 0], sums[:, 1]), fields)

    def _paper(self, error: CellError | None) -> Measure:
        scores, fields = self._found.scores, self._of_rows(np.arange(len(self._found.codes)))
        if error is None and not np.isfinite(self._found.active_tokens).all():
            error = CellError(Status.NOT_IMPLEMENTED, "the features came without L0")
        if error is not None:
            return Measure.failed(PAPER, error, **fields)
        sums = self._sums(np.stack([self._found.active_tokens, self._found.tokens], axis=1))
        both = self._samples((scores.contrastive + scores.independent)[:, None])[:, 0]
        return self._measure(PAPER, both - _PAPER_L0 * _over(sums[:, 0], sums[:, 1]), fields)

    def _measure(self, metric: str, samples: np.ndarray, fields: dict[str, Any]) -> Measure:
        # Resamples of one subject are all equal: they say nothing about another one.
        interval = percentile_interval(samples[1:]) if fields["num_groups"] > 1 else None
        return Measure.of(metric, samples[0], interval, **fields)

    def _of_rows(self, rows: np.ndarray) -> dict[str, Any]:
        """Return the fields of a figure of some of the rows: their number, and their share of all rows."""
        num_rows = len(self._found.codes)
        share = len(rows) / num_rows * self._fields["coverage"]
        counted = {"n": len(rows), "num_groups": len(np.unique(self._found.codes[rows])), "coverage": share}
        return {**self._fields, **counted, "details": dict(self._fields["details"])}

    def _no_score(self) -> CellError | None:
        if self._found.num_features < 2:
            return CellError(Status.TOO_FEW, "the autoencoder has one feature: it cannot stand out")
        if self._found.dead_share == 1:
            return CellError(Status.COLLAPSED, "no feature is active in any of the stories")
        return None

    def _no_others(self) -> CellError | None:
        if self._found.published or self._found.num_subjects > 1:
            return None
        return CellError(Status.TOO_FEW, "one subject: the score compares it with the other subjects")

    def _no_marks(self) -> CellError | None:
        if np.isfinite(self._found.scores.marked).any():
            return None
        return CellError(Status.NO_COVERAGE, "no pair of stories has marked and unmarked tokens in both stories")


_NOTHING = CellError(Status.FAILED, "no row has a value")


def num_features(count: int, fields: dict[str, Any]) -> Measure:
    """Return the width of an autoencoder as a measure."""
    return Measure.of(NUM_FEATURES, count, **{**fields, "n": None, "num_groups": None, "coverage": None, "details": {}})


def _subject_means(values_nC: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the mean over the rows of each subject that have a value [S, C]; NaN if none has."""
    known = np.isfinite(values_nC)
    sums, counts = np.zeros((2, int(codes.max()) + 1, values_nC.shape[1]))
    np.add.at(sums, codes, np.where(known, values_nC, 0.0))
    np.add.at(counts, codes, known)
    return np.where(counts > 0, sums / np.maximum(1, counts), np.nan)


def _over(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return the quotient; NaN where the divisor is 0."""
    return np.where(below == 0, np.nan, above / np.where(below == 0, 1.0, below))
