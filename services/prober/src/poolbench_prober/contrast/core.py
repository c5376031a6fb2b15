"""Contrast of one autoencoder's features: its measures, and a table of subjects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import SUBJECT_SCORES, table_from_rows
from poolbench.errors import CellError
from poolbench.steps.prober import ContrastParams
from poolbench_prober import cost
from poolbench_prober.contrast.features import ALL, StoryFeatures, commonest, read_features
from poolbench_prober.contrast.figures import CORRECTED, NUM_FEATURES, PUBLISHED, Figures, num_features
from poolbench_prober.contrast.pairs import Pairs
from poolbench_prober.contrast.scores import RowScores, row_scores
from poolbench_prober.contrast.subjects import SubjectFeatures, subject_features

_LACKING = "pairs of stories have no features"
_CI_METHOD = "bootstrap over subjects, percentile"


@dataclass(frozen=True)
class Contrast:
    """What was found: the measures, and a table SUBJECT_SCORES."""

    measures: list[Measure]
    subjects: pa.Table


def contrast(stories: pa.Table, features: Iterable[pa.Table], params: ContrastParams) -> Contrast:
    """Return the scores of an autoencoder on pairs of stories.

    A row is left out, and counted in the details of each measure, if one of its stories has no features. Protocols:

    - `published`: I2 is 0, and a mean is over rows.
    - `corrected`: I2 is the mean I1 of the other subjects. z-scores are divided by the square root of the number F of
      features, because they are at most (F - 1) / sqrt(F); so are the scores after a joint normalisation, which are at
      most sqrt(2 (2 F - 1)). A mean is over subjects, each the mean over its rows.

    The dense arrays have a fixed size. What grows with the number of stories are their sparse means, 8 bytes each.

    Args:
        stories: STORIES.
        features: FEATURES tables of one autoencoder, which may overlap.
        params: Parameters of the step.

    Raises:
        InputError: A table is malformed, a story is in no table, or tables are of different autoencoders.
        TooLargeError: Means or resamples exceed what a task may hold.

    Reference: Gulko, Peng and Kumar (2025), CE-Bench, and its released code. We depart from it in `corrected`.
    """
    pairs = Pairs.from_table(stories)
    cost.of_contrast(len(pairs.by_subject()), params.num_bootstrap).require(cost.TASK)
    story_features = read_features(features, pairs.passages)
    errors = _row_errors(pairs, story_features)
    used = pairs.chosen(np.array([error is None for error in errors]))
    fields: dict[str, Any] = {"seed": params.seed, "coverage": len(used) / len(pairs), "details": {}}
    left_out = Counter(str(error.status) for error in errors if error is not None)
    if left_out:
        fields["details"] = {"left_out": dict(sorted(left_out.items()))}
    if not len(used):
        return Contrast(
            _no_measures(errors, story_features.num_features, fields, params), _table(pairs, used, errors, None, ())
        )
    published = params.protocol == "published"
    scores = row_scores(used, story_features, others=not published)
    if not published:
        scores = RowScores(*(values / np.sqrt(story_features.num_features) for values in scores))
    singles = tuple(subject_features(used, story_features.parts[ALL], params.seed))
    fields["ci_method"] = _CI_METHOD if published else f"{_CI_METHOD}, conditional on the features of the others"
    held_out = np.array([single.held_out for single in singles])
    measures = list(Figures(used, story_features, scores, held_out, params, fields).measures())
    return Contrast(measures, _table(pairs, used, errors, scores, singles))


def _row_errors(pairs: Pairs, features: StoryFeatures) -> list[CellError | None]:
    """Return why each row is left out; None if both stories have features."""
    sides = ((features.errors.get(first), features.errors.get(second)) for first, second in pairs.stories_n2)
    return [first or second for first, second in sides]


def _no_measures(
    errors: Sequence[CellError | None], count: int, fields: dict[str, Any], params: ContrastParams
) -> list[Measure]:
    """Return the measures where no row can be used: null with the commonest status, but for the number of features."""
    error = commonest(errors, _LACKING)
    names = PUBLISHED if params.protocol == "published" else CORRECTED
    nulls = [Measure.failed(name, error, n=0, **fields) for name in names if name != NUM_FEATURES]
    return [*nulls, num_features(count, fields)]


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
