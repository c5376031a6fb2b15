"""Scores of each row: how far the feature that stands out most is above the mean feature, in standard deviations."""

from typing import NamedTuple

import numpy as np

from poolbench.cancellation import check_cancelled
from poolbench_prober.contrast.features import ALL, MARKED, UNMARKED, Part, StoryFeatures
from poolbench_prober.contrast.pairs import Pairs

#: Standard deviation over the largest value below which values differ by rounding alone. That of a single feature
#: among F is 1 / sqrt(F).
_ROUNDING = 1e-9
#: Most dense feature values of one matrix at once.
_BLOCK_VALUES = 1 << 18


class RowScores(NamedTuple):
    """Scores of each row [n], not divided by sqrt(F). A row without a score has NaN."""

    contrastive: np.ndarray  # max z(|V1 - V2|), of the means V1 and V2 over the tokens of the two stories
    independent: np.ndarray  # max z(|I1 - I2|), of the mean I1 over the tokens of both stories
    interpretability: np.ndarray  # max z(|V1 - V2| + |I1 - I2|)
    marked: np.ndarray  # max z(|M - U|), of the means over the marked and unmarked tokens of both stories
    contrastive_joint: np.ndarray  # max |V1 - V2| over the standard deviation of V1 and V2 together
    marked_joint: np.ndarray  # max |M - U| over that of M and U together
    null_contrastive: np.ndarray  # the contrastive score of two stories of the same side, mean over the two sides
    null_interpretability: np.ndarray  # likewise, with the I1 of those two stories


def standouts(values_rF: np.ndarray) -> np.ndarray:
    """Return max_j (x_j - mean) / sd of each row [r], with ddof 1. A standard deviation of 0 counts as 1."""
    top_r, mean_r = values_rF.max(axis=1), values_rF.mean(axis=1)
    deviations = values_rF - mean_r[:, None]
    sd_r = np.sqrt(np.square(deviations, out=deviations).sum(axis=1) / max(1, values_rF.shape[1] - 1))
    return np.asarray((top_r - mean_r) / np.where(sd_r > _ROUNDING * np.abs(top_r), sd_r, 1.0))


def joint_standouts(first_rF: np.ndarray, second_rF: np.ndarray) -> np.ndarray:
    """Return max_j |x_j - y_j| / sd of each row [r], with the sd (ddof 1, 0 counts as 1) of x and y together.

    This is the largest difference of x and y after a joint normalisation, which moves both by the same mean.
    """
    mean_r1 = (first_rF.mean(axis=1) + second_rF.mean(axis=1))[:, None] / 2
    squares_r = np.square(first_rF - mean_r1).sum(axis=1) + np.square(second_rF - mean_r1).sum(axis=1)
    sd_r, top_r = np.sqrt(squares_r / (2 * first_rF.shape[1] - 1)), np.abs(first_rF - second_rF).max(axis=1)
    return np.asarray(top_r / np.where(sd_r > _ROUNDING * np.abs(mean_r1[:, 0]), sd_r, 1.0))


def row_scores(pairs: Pairs, features: StoryFeatures, *, others: bool) -> RowScores:
    """Return the scores of each row.

    For the null, a pair consists of two stories of one side of a subject, from consecutive rows. The last row is paired
    with the first. Such stories share only subject and side. A subject with one row has no null.

    Args:
        pairs: Rows whose stories all have features.
        others: If true, I2 is the mean over the other subjects, where each subject has the mean I1 of its rows.
            Scores that need I2 are then NaN for a single subject. If false, I2 is 0.
    """
    scores = RowScores(*(np.full(len(pairs), np.nan) for _ in RowScores._fields))
    whole = features.parts[ALL]
    subjects = pairs.by_subject()
    total_F = np.zeros(features.num_features)
    if others:
        for _, rows in subjects:
            total_F += _joint_mean(whole, pairs.stories_n2[rows])
    for _, rows in subjects:
        check_cancelled()
        stories_r2 = pairs.stories_n2[rows]
        other_F: np.ndarray | None = total_F
        if others:
            own_F = _joint_mean(whole, stories_r2)
            other_F = (total_F - own_F) / (len(subjects) - 1) if len(subjects) > 1 else None
        step = max(1, _BLOCK_VALUES // features.num_features)
        for start in range(rows.start, rows.stop, step):
            block = slice(start, min(start + step, rows.stop))
            local = np.arange(block.start - rows.start, block.stop - rows.start)
            _score_block(scores, block, stories_r2, local, whole, other_F)
            scores.marked[block], scores.marked_joint[block] = _marked(features, stories_r2[local])
    return scores


def _joint_mean(part: Part, stories_r2: np.ndarray) -> np.ndarray:
    """Return the mean I1 of the rows of a subject [F]."""
    tokens_r2 = part.num_tokens[stories_r2]
    weights_r2 = tokens_r2 / tokens_r2.sum(axis=1, keepdims=True) / len(stories_r2)
    return part.weighted_sum(stories_r2.ravel(), weights_r2.ravel())


def _score_block(
    scores: RowScores, block: slice, stories_r2: np.ndarray, local: np.ndarray, part: Part, other_F: np.ndarray | None
) -> None:
    """Write the scores of some consecutive rows of a subject, which are `local` among its rows."""
    following = stories_r2[np.append(local, local[-1] + 1) % len(stories_r2)]
    first, second = (_Side(part.dense(stories), part.num_tokens[stories]) for stories in following.T)
    pair_scores = _pair_scores(first.first(), second.first(), other_F)
    scores.contrastive[block], scores.independent[block], scores.interpretability[block] = pair_scores
    scores.contrastive_joint[block] = joint_standouts(first.first().means_rF, second.first().means_rF)
    if len(stories_r2) < 2:
        return
    nulls = [_pair_scores(side.first(), side.following(), other_F, null=True) for side in (first, second)]
    scores.null_contrastive[block] = np.mean([null[0] for null in nulls], axis=0)
    scores.null_interpretability[block] = np.mean([null[2] for null in nulls], axis=0)


class _Side(NamedTuple):
    """Stories of one side, of consecutive rows and the one after them."""

    means_rF: np.ndarray
    tokens_r: np.ndarray

    def first(self) -> "_Side":
        """Return the stories of the rows."""
        return _Side(self.means_rF[:-1], self.tokens_r[:-1])

    def following(self) -> "_Side":
        """Return the stories of the rows after these."""
        return _Side(self.means_rF[1:], self.tokens_r[1:])


def _pair_scores(
    first: _Side, second: _Side, other_F: np.ndarray | None, *, null: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return contrastive, independent and interpretability score of each pair [r]; a null needs no independent one."""
    difference_rF = np.abs(first.means_rF - second.means_rF)
    nothing = np.full(len(difference_rF), np.nan)
    contrastive = standouts(difference_rF)
    if other_F is None:
        return contrastive, nothing, nothing
    apart_rF = _joined(first, second)
    np.abs(np.subtract(apart_rF, other_F, out=apart_rF), out=apart_rF)
    independent = nothing if null else standouts(apart_rF)
    return contrastive, independent, standouts(np.add(apart_rF, difference_rF, out=apart_rF))


def _joined(first: _Side, second: _Side) -> np.ndarray:
    """Return the means over the tokens of both stories of each row [r, F]."""
    share_r1 = (first.tokens_r / (first.tokens_r + second.tokens_r))[:, None]
    joined_rF = share_r1 * first.means_rF
    joined_rF += (1 - share_r1) * second.means_rF
    return np.asarray(joined_rF)


def _marked(features: StoryFeatures, stories_r2: np.ndarray) -> np.ndarray:
    """Return both scores of marked against unmarked tokens [2, r]; NaN unless both stories have tokens of both parts.

    The first normalises the difference, the second the two means together.
    """
    parts = [features.parts[name] for name in (MARKED, UNMARKED)]
    scores_2r = np.full((2, len(stories_r2)), np.nan)
    rows = np.flatnonzero(np.all([part.num_tokens[stories_r2].all(axis=1) for part in parts], axis=0))
    if len(rows):
        marked_rF, unmarked_rF = (_both_stories(part, stories_r2[rows]) for part in parts)
        scores_2r[0, rows] = standouts(np.abs(marked_rF - unmarked_rF))
        scores_2r[1, rows] = joint_standouts(marked_rF, unmarked_rF)
    return scores_2r


def _both_stories(part: Part, stories_r2: np.ndarray) -> np.ndarray:
    sides = (_Side(part.dense(stories), part.num_tokens[stories]) for stories in stories_r2.T)
    return _joined(*sides)
