"""The table of features by subject: which subjects a feature answers to, and which features answer to a subject."""

import numpy as np
import pyarrow as pa

from poolbench.cancellation import check_cancelled
from poolbench.contracts.tables import SUBJECT_FEATURES
from poolbench.steps.prober import FEATURES_OF_SUBJECT, SUBJECTS_OF_FEATURE
from poolbench_prober.contrast.core import StoryPairs, side_means
from poolbench_prober.contrast.features import ALL
from poolbench_prober.contrast.scores import standouts


def features_by_subject(compared: StoryPairs) -> pa.Table:
    """Return SUBJECT_FEATURES: the difference between the high and the low stories of each subject, by feature.

    Values are means over the rows of the subject. The table has the `FEATURES_OF_SUBJECT` features with the largest
    absolute difference on each subject, and the `SUBJECTS_OF_FEATURE` subjects of each feature. The largest
    differences of a subject come first.
    """
    part, names, parts = compared.features.parts[ALL], list[str](), list[np.ndarray]()
    for number, (subject, rows) in enumerate(compared.used.by_subject()):
        check_cancelled()
        first_F, second_F = side_means(compared.used.stories_n2[rows], part)
        sizes_F = np.abs(first_F - second_F)
        features = np.flatnonzero(sizes_F)
        features = features[np.argsort(-sizes_F[features], kind="stable")]
        deviations_F = sizes_F - sizes_F.mean()
        z_F = standouts(sizes_F[None])[0] * deviations_F / (deviations_F.max() or 1.0)
        columns = (np.full(len(features), number), features, first_F[features], second_F[features], z_F[features])
        parts.append(np.column_stack([*columns, np.arange(len(features))]))
        names.append(subject)
    numbers, features, first, second, z, place = np.concatenate([np.zeros((0, 6)), *parts]).T
    strong_n = place < FEATURES_OF_SUBJECT
    strong_n |= _places_within(features, np.abs(first - second)) < SUBJECTS_OF_FEATURE
    values = [column[strong_n] for column in (features, first, second, first - second, z)]
    subjects = pa.array(names, pa.string()).take(pa.array(numbers[strong_n].astype(int)))
    return pa.table([subjects, *map(pa.array, values)], SUBJECT_FEATURES.names).cast(SUBJECT_FEATURES)


def _places_within(groups: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the place of each size among those of its group, 0 for the largest; the first of equals is before."""
    order = np.lexsort((-sizes, groups))
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    places = np.empty(len(groups), int)
    places[order] = np.arange(len(groups)) - np.repeat(starts, counts)
    return places
