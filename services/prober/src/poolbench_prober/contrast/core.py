"""Contrast of one autoencoder's features: its measures, and a table of subjects."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import SUBJECT_SCORES, table_from_rows
from poolbench.errors import CellError
from poolbench.steps.prober import ContrastParams
from poolbench_prober.contrast.features import ALL, Part, StoryFeatures, commonest, read_features
from poolbench_prober.contrast.figures import CORRECTED, NUM_FEATURES, PUBLISHED, Figures, num_features
from poolbench_prober.contrast.pairs import Pairs
from poolbench_prober.contrast.scores import RowScores, row_scores

NUM_SHOWN = 5
_LACKING = "pairs of stories have no features"
_CI_METHOD = "bootstrap over subjects, percentile"


class Strongest(NamedTuple):
    """A feature, with its means over the stories of both sides."""

    feature: int
    first: float
    second: float
    sign: int


class SubjectFeatures(NamedTuple):
    """The share of a subject's pairs that a feature chosen on other pairs gets right, and the strongest features."""

    held_out: float  # NaN with one row
    strongest: tuple[Strongest, ...]


def subject_features(pairs: Pairs, part: Part, seed: int) -> Iterator[SubjectFeatures]:
    """Yield the features of each subject, in order."""
    for subject, rows in pairs.by_subject():
        stories_r2 = pairs.stories_n2[rows]
        yield SubjectFeatures(held_out_share(stories_r2, part, f"{seed}:{subject}"), _strongest(stories_r2, part))


def held_out_share(stories_r2: np.ndarray, part: Part, key: str) -> float:
    """Return the share of held-out rows that the best feature of other rows gets right, or NaN for one row.

    The rows are halved at random. The feature with the largest mean difference on one half is read on the other half.
    A row is right if its first story has more of the feature (less, if the difference is negative). A tie counts half.
    The share is the mean over the two directions. Chance is .5, whatever the number of features.

    Args:
        stories_r2: The two stories of each row.
        part: Mean features of the stories.
        key: Seed of the halves.
    """
    count = len(stories_r2)
    if count < 2:
        return float("nan")
    order = Random(key).sample(range(count), count)
    halves = stories_r2[order[: count // 2]], stories_r2[order[count // 2 :]]
    return float(np.mean([_right(half, read, part) for half, read in (halves, halves[::-1])]))


def _right(chosen_r2: np.ndarray, read_r2: np.ndarray, part: Part) -> float:
    difference_F = mean_difference(chosen_r2, part)
    feature = int(np.abs(difference_F).argmax())
    first, second = (part.means_PF[read_r2[:, side]][:, [feature]].toarray()[:, 0] for side in (0, 1))
    return float(np.mean((1 + np.sign(difference_F[feature]) * np.sign(first - second)) / 2))


def mean_difference(stories_r2: np.ndarray, part: Part) -> np.ndarray:
    """Return the mean over rows of V1 - V2 [F]."""
    return part.weighted_sum(stories_r2.ravel(), np.tile([1.0, -1.0], len(stories_r2)) / len(stories_r2))


def side_means(stories_r2: np.ndarray, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean features [F] of the first stories and of the second stories of the rows."""
    weights_r = np.full(len(stories_r2), 1 / len(stories_r2))
    first_F, second_F = (part.weighted_sum(stories_r2[:, side], weights_r) for side in (0, 1))
    return first_F, second_F


def _strongest(stories_r2: np.ndarray, part: Part) -> tuple[Strongest, ...]:
    first_F, second_F = side_means(stories_r2, part)
    difference_F = first_F - second_F
    return tuple(
        Strongest(feature, float(first_F[feature]), float(second_F[feature]), int(np.sign(difference_F[feature])))
        for feature in _largest(np.abs(difference_F), NUM_SHOWN)
    )


def _largest(sizes_F: np.ndarray, count: int) -> list[int]:
    """Return the numbers of the largest values above 0, largest first; the first of equals."""
    left_F, features = sizes_F.copy(), []
    for _ in range(count):
        largest = int(left_F.argmax())
        if not left_F[largest] > 0:
            break
        features.append(largest)
        left_F[largest] = 0
    return features


@dataclass(frozen=True)
class StoryPairs:
    """Pairs of stories with the features of one autoencoder."""

    pairs: Pairs
    features: StoryFeatures
    errors: Sequence[CellError | None]  # why a row is not used

    @classmethod
    def read(cls, pairs: Pairs, features: Iterable[pa.Table]) -> Self:
        """Return pairs with their features.

        The dense arrays have a fixed size. Only the sparse means grow with the number of stories, by 8 bytes per value.

        Args:
            pairs: The pairs.
            features: FEATURES tables of one autoencoder, which may overlap.

        Raises:
            InputError: A table is malformed, a story is in no table, or tables are of different autoencoders.
            TooLargeError: Means exceed what a task may hold.
        """
        story_features = read_features(features, pairs.passages)
        failed = story_features.errors
        return cls(
            pairs, story_features, [failed.get(first) or failed.get(second) for first, second in pairs.stories_n2]
        )

    @property
    def used(self) -> Pairs:
        """Return the rows of which both stories have features."""
        return self.pairs.chosen(np.array([error is None for error in self.errors]))


@dataclass(frozen=True)
class Contrast:
    """The result of a contrast: the measures, and a table SUBJECT_SCORES."""

    measures: list[Measure]
    subjects: pa.Table


def contrast(compared: StoryPairs, params: ContrastParams) -> Contrast:
    """Return the scores of an autoencoder on pairs of stories.

    A row is left out, and counted in the details of each measure, if one of its stories has no features. Protocols:

    - `published`: I2 is 0, and a mean is over rows.
    - `corrected`: I2 is the mean I1 of the other subjects. z-scores are divided by the square root of the number F of
      features, because they are at most (F - 1) / sqrt(F); so are the scores after a joint normalisation, which are at
      most sqrt(2 (2 F - 1)). A mean is over subjects, where each subject has the mean over its rows.

    Reference: Gulko, Peng and Kumar (2025), CE-Bench, and its released code. We depart from it in `corrected`.
    """
    pairs, story_features, errors, used = compared.pairs, compared.features, compared.errors, compared.used
    fields: dict[str, Any] = {"seed": params.seed, "coverage": len(used) / len(pairs), "details": {}}
    left_out = Counter(str(error.status) for error in errors if error is not None)
    if left_out:
        fields["details"] = {"left_out": dict(sorted(left_out.items()))}
    published = params.protocol == "published"
    if not len(used):
        error = commonest(errors, _LACKING)
        names = PUBLISHED if published else CORRECTED
        nulls = [Measure.failed(name, error, n=0, **fields) for name in names if name != NUM_FEATURES]
        measures = [*nulls, num_features(story_features.num_features, fields)]
        return Contrast(measures, _table(pairs, used, errors, None, ()))
    scores = row_scores(used, story_features, others=not published)
    if not published:
        scores = RowScores(*(values / np.sqrt(story_features.num_features) for values in scores))
    singles = tuple(subject_features(used, story_features.parts[ALL], params.seed))
    fields["ci_method"] = _CI_METHOD if published else f"{_CI_METHOD}, conditional on the features of the others"
    held_out = np.array([single.held_out for single in singles])
    measures = list(Figures(used, story_features, scores, held_out, params, fields).measures())
    return Contrast(measures, _table(pairs, used, errors, scores, singles))


def _table(
    pairs: Pairs,
    used: Pairs,
    errors: Sequence[CellError | None],
    scores: RowScores | None,
    singles: Sequence[SubjectFeatures],
) -> pa.Table:
    """Return SUBJECT_SCORES, one row per subject; a subject without a row that is used has the reason."""
    places = {subject: (number, rows) for number, (subject, rows) in enumerate(used.by_subject())}
    table: list[dict[str, Any]] = []
    for subject, rows in pairs.by_subject():
        if scores is None or subject not in places:
            error = commonest(errors[rows], _LACKING)
            why = {"status": str(error.status), "reason": str(error)}
            table.append({"subject": subject, "num_rows": 0, **why})
            continue
        number, block = places[subject]
        means = {name: _finite(getattr(scores, name)[block].mean()) for name in _SHOWN}
        counts = {"held_out": _finite(singles[number].held_out), "num_rows": block.stop - block.start}
        strongest = [feature._asdict() for feature in singles[number].strongest]
        table.append({"subject": subject, **means, **counts, "features": strongest})
    return table_from_rows(table, SUBJECT_SCORES)


_SHOWN = ("contrastive", "independent", "interpretability")


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
