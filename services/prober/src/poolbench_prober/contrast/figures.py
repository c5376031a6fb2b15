"""Measures of an autoencoder from the scores of rows and subjects, with intervals from a bootstrap over subjects."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_mean_resamples, percentile_interval
from poolbench.statuses import Status
from poolbench.steps.prober import ContrastParams
from poolbench_prober.contrast.features import ALL, StoryFeatures
from poolbench_prober.contrast.pairs import Pairs
from poolbench_prober.contrast.scores import RowScores

CONTRASTIVE, INDEPENDENT, INTERPRETABILITY = MAIN = ("ce.contrastive", "ce.independent", "ce.interpretability")
MARKED, SUM = "ce.independent.marked", "ce.interpretability.sum"
JOINT = "ce.contrastive.joint", "ce.independent.joint", "ce.interpretability.joint"
CONTRASTIVE_EXCESS, INTERPRETABILITY_EXCESS = "ce.contrastive.excess", "ce.interpretability.excess"
HELD_OUT, PAPER = "ce.held_out", "ce.paper"
L0, UNEXPLAINED, DEAD_SHARE, NUM_FEATURES = "ce.l0", "ce.unexplained_variance", "ce.dead_share", "ce.num_features"
_UP_TO_PAPER = (*MAIN, CONTRASTIVE_EXCESS, INTERPRETABILITY_EXCESS, HELD_OUT, MARKED, SUM, *JOINT, L0, UNEXPLAINED,
               DEAD_SHARE)  # fmt: skip
#: The metrics of each protocol, in order.
CORRECTED, PUBLISHED = (*_UP_TO_PAPER, NUM_FEATURES), (*_UP_TO_PAPER, PAPER, NUM_FEATURES)
#: How much a feature per token costs in the score of the paper.
_PAPER_L0 = 0.25
#: Value and resamples of a figure, and its details.
Samples = tuple[np.ndarray, dict[str, Any]]
#: What must hold for a figure; each raises CellError.
Checks = Sequence[Callable[[], None]]


class Figures:
    """The measures of one autoencoder.

    Entry 0 of a list of samples is the value, and further entries are resamples. All figures share the resamples.

    Args:
        pairs: Rows whose stories all have features [n], of S subjects.
        features: Features of the stories.
        scores: Scores of each row [n], as they are reported.
        held_out: Share of right pairs of each subject [S]; NaN with one row.
        params: Parameters of the step. With `published`, means are over rows. Otherwise they are over subjects, where
            each subject has the mean over its rows.
        fields: Fields that all measures share.
    """

    def __init__(
        self,
        pairs: Pairs,
        features: StoryFeatures,
        scores: RowScores,
        held_out: np.ndarray,
        params: ContrastParams,
        fields: dict[str, Any],
    ) -> None:
        self._pairs, self._features, self._fields = pairs, features, fields
        self._scores, self._held_out, self._codes = scores, held_out, pairs.codes
        self._published = params.protocol == "published"
        self._drawn: dict[str, Any] = {"num_resamples": params.num_bootstrap, "seed": params.seed}
        self._every = np.ones(len(pairs), dtype=bool)
        active = features.parts[ALL].means_PF[np.unique(pairs.stories_n2)].indices
        self._dead_share = 1 - len(np.unique(active)) / features.num_features

    def measures(self) -> Iterator[Measure]:
        """Yield each measure of the protocol."""
        scores, features, tokens = self._scores, self._features, self._features.parts[ALL].num_tokens
        of_score, of_others, of_marks = (
            (self._require_scores, *more) for more in ((), (self._require_others,), (self._require_marks,))
        )
        yield self._mean(CONTRASTIVE, scores.contrastive, of_score)
        yield self._mean(INDEPENDENT, scores.independent, of_others)
        yield self._mean(INTERPRETABILITY, scores.interpretability, of_others)
        yield self._excess(CONTRASTIVE_EXCESS, scores.contrastive, scores.null_contrastive, of_score)
        yield self._excess(INTERPRETABILITY_EXCESS, scores.interpretability, scores.null_interpretability, of_others)
        yield self._of_halves(of_score)
        yield self._mean(MARKED, scores.marked, of_marks)
        yield self._mean(SUM, scores.contrastive + scores.marked, of_marks)
        joint = scores.contrastive_joint, scores.marked_joint, scores.contrastive_joint + scores.marked_joint
        for metric, values_n, checks in zip(JOINT, joint, (of_score, of_marks, of_marks), strict=True):
            yield self._mean(metric, values_n, checks)
        yield self._ratio(L0, features.l0 * tokens, tokens)
        yield self._ratio(UNEXPLAINED, features.squared_error, features.squared_norm)
        yield Measure.of(DEAD_SHARE, self._dead_share, **{**self._fields, "n": features.num_features})
        if self._published:
            yield self._paper(features.l0 * tokens, tokens, of_score)
        yield num_features(features.num_features, self._fields)

    def _samples(self, values_nC: np.ndarray) -> np.ndarray:
        """Return the mean of each column, and its resamples [1 + R, C]. NaN is a row without a value."""
        groups = self._codes
        values, has_value_C = values_nC, np.isfinite(values_nC).any(axis=0)
        if not self._published:
            values, groups = _subject_means(values_nC, groups), np.arange(len(self._held_out))
        means = np.where(
            has_value_C, np.nansum(values, axis=0) / np.maximum(1, np.isfinite(values).sum(axis=0)), np.nan
        )
        return np.vstack([means, group_mean_resamples(values, groups, **self._drawn)])

    def _quotients(self, above_P: np.ndarray, below_P: np.ndarray, unknown: str, constant: str) -> np.ndarray:
        """Return the sum of a figure of the stories over that of another one, and its resamples [1 + R]."""
        both_nC = np.stack([values[self._pairs.stories_n2].sum(axis=1) for values in (above_P, below_P)], axis=1)
        if not np.isfinite(both_nC).all():
            raise CellError(Status.NOT_IMPLEMENTED, f"the features came without {unknown}")
        sums = np.vstack([both_nC.mean(axis=0), group_mean_resamples(both_nC, self._codes, **self._drawn)])
        if sums[0, 1] == 0:
            raise CellError(Status.COLLAPSED, constant)
        return _over(*sums.T)

    def _mean(self, metric: str, values_n: np.ndarray, checks: Checks) -> Measure:
        has_value_n = np.isfinite(values_n)

        def drawn() -> Samples:
            if not has_value_n.any():
                raise CellError(Status.TOO_FEW, "no row has a value")
            units = values_n[has_value_n] if self._published else _subject_means(values_n[:, None], self._codes)
            units = units[np.isfinite(units)]
            spread = {"standard_error": float(units.std(ddof=1) / np.sqrt(len(units)))} if len(units) > 1 else {}
            return self._samples(values_n[:, None])[:, 0], spread

        return self._measure(metric, has_value_n, drawn, checks)

    def _excess(self, metric: str, values_n: np.ndarray, null_n: np.ndarray, checks: Checks) -> Measure:
        """Return mean score over mean null score, minus 1, of the rows that have both."""
        both = np.isfinite(values_n) & np.isfinite(null_n)

        def drawn() -> Samples:
            _require_two(both)
            samples = self._samples(np.where(both[:, None], np.stack([values_n, null_n], axis=1), np.nan))
            if samples[0, 1] == 0:
                reason = "two stories of the same side have the same features throughout: nothing to compare with"
                raise CellError(Status.COLLAPSED, reason)
            return _over(*samples.T) - 1, {"null": float(samples[0, 1])}

        return self._measure(metric, both, drawn, checks)

    def _of_halves(self, checks: Checks) -> Measure:
        has_value_S = np.isfinite(self._held_out)

        def drawn() -> Samples:
            _require_two(has_value_S)
            resamples = group_mean_resamples(self._held_out[:, None], **self._drawn)[:, 0]
            return np.concatenate([[self._held_out[has_value_S].mean()], resamples]), {}

        return self._measure(HELD_OUT, has_value_S[self._codes], drawn, checks)

    def _ratio(self, metric: str, above_P: np.ndarray, below_P: np.ndarray) -> Measure:
        what = "this figure", "the states of the stories are all equal"
        return self._measure(metric, self._every, lambda: (self._quotients(above_P, below_P, *what), {}))

    def _paper(self, active_P: np.ndarray, tokens_P: np.ndarray, checks: Checks) -> Measure:
        def drawn() -> Samples:
            l0 = self._quotients(active_P, tokens_P, "L0", "the stories have no tokens")
            both_n = self._scores.contrastive + self._scores.independent
            return self._samples(both_n[:, None])[:, 0] - _PAPER_L0 * l0, {}

        return self._measure(PAPER, self._every, drawn, checks)

    def _measure(self, metric: str, used_n: np.ndarray, drawn: Callable[[], Samples], checks: Checks = ()) -> Measure:
        """Return a figure of some of the rows, with their number and their share of all; null if it has an error."""
        share = np.count_nonzero(used_n) / len(used_n) * self._fields["coverage"]
        fields = {**self._fields, "n": int(used_n.sum()), "coverage": share}
        fields["num_groups"] = len(np.unique(self._codes[used_n]))
        try:
            for check in checks:
                check()
            samples, details = drawn()
        except CellError as error:
            return Measure.failed(metric, error, **fields)
        # Resamples of one subject are all equal: they say nothing about another one.
        interval = percentile_interval(samples[1:]) if fields["num_groups"] > 1 else None
        return Measure.of(metric, samples[0], interval, **{**fields, "details": fields["details"] | details})

    def _require_scores(self) -> None:
        if self._features.num_features < 2:
            raise CellError(Status.TOO_FEW, "the autoencoder has one feature: it cannot stand out")
        if self._dead_share == 1:
            raise CellError(Status.COLLAPSED, "no feature is active in any of the stories")

    def _require_others(self) -> None:
        if not self._published and len(self._held_out) < 2:
            raise CellError(Status.TOO_FEW, "one subject: the score compares it with the other subjects")

    def _require_marks(self) -> None:
        if not np.isfinite(self._scores.marked).any():
            reason = "no pair of stories has marked and unmarked tokens in both stories"
            raise CellError(Status.NO_COVERAGE, reason)


def _require_two(has_value_S: np.ndarray) -> None:
    if not has_value_S.any():
        raise CellError(Status.TOO_FEW, "no subject has two pairs of stories")


def num_features(count: int, fields: dict[str, Any]) -> Measure:
    """Return the width of an autoencoder as a measure."""
    return Measure.of(NUM_FEATURES, count, **{**fields, "n": None, "num_groups": None, "coverage": None, "details": {}})


def _subject_means(values_nC: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the mean over the rows of each subject that have a value [S, C]; NaN if none has."""
    finite_nC = np.isfinite(values_nC)
    sums, counts = np.zeros((2, int(codes.max()) + 1, values_nC.shape[1]))
    np.add.at(sums, codes, np.where(finite_nC, values_nC, 0.0))
    np.add.at(counts, codes, finite_nC)
    return np.where(counts > 0, sums / np.maximum(1, counts), np.nan)


def _over(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return the quotient; NaN where the divisor is 0."""
    return np.where(below == 0, np.nan, above / np.where(below == 0, 1.0, below))
