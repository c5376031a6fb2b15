"""Mean features of stories, as sparse rows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.tables import ERROR_COLUMNS, FEATURES, autoencoder_of, error_of, require_columns
from poolbench.errors import CellError, InputError, shown
from poolbench.statuses import Status
from poolbench_prober import cost

ALL, MARKED, UNMARKED = PARTS = ("all", "marked", "unmarked")
_NUMBERS = ("num_tokens", "l0", "squared_error", "squared_norm")
#: Bytes of a feature mean: its number, its value, and a copy of both while the rows are joined.
_MEAN_BYTES = 16


@dataclass(frozen=True)
class Part:
    """One part of each story's tokens."""

    means_PF: csr_matrix  # mean features of each story over these tokens, float32; a story without any has none
    num_tokens: np.ndarray  # tokens of each story in this part [P]; 0 if it has none

    def dense(self, stories_r: np.ndarray) -> np.ndarray:
        """Return the means of some stories [r, F] in float64."""
        return np.asarray(self.means_PF[stories_r].toarray(), dtype=np.float64)

    def weighted_sum(self, stories_r: np.ndarray, weights_r: np.ndarray) -> np.ndarray:
        """Return the weighted sum [F] of the means of some stories. Only features that occur cost time."""
        rows = self.means_PF[stories_r]
        values = rows.data.astype(np.float64) * np.repeat(weights_r, np.diff(rows.indptr))
        return np.bincount(rows.indices, weights=values, minlength=rows.shape[1])


@dataclass(frozen=True)
class StoryFeatures:
    """The mean features of P stories under an autoencoder with F features."""

    num_features: int
    parts: dict[str, Part]  # all, marked and unmarked tokens, by name
    l0: np.ndarray  # mean number of features per token that are not zero [P]; NaN if unknown
    squared_error: np.ndarray  # squared error of the reconstruction, summed over tokens [P]; NaN if unknown
    squared_norm: np.ndarray  # squared distance from the centre, summed over tokens [P]; NaN if unknown
    errors: dict[int, CellError]  # why a story has no features, by its number


@dataclass
class _Rows:
    """What has been read of the stories: lists of features and numbers, by story and part."""

    means: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    numbers: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, CellError] = field(default_factory=dict)


def read_features(tables: Iterable[pa.Table], passages: Sequence[str]) -> StoryFeatures:
    """Read the features of `passages` from FEATURES tables, which may overlap. Other passages are left out.

    Raises:
        InputError: A story is in no table, a table is malformed, or tables are of different autoencoders.
        TooLargeError: The means exceed what a task may hold.
    """
    passage_set, feature_rows = set(passages), _Rows()
    kinds: set[tuple[int, str]] = set()
    num_means = 0
    for table in tables:
        require_columns(table, FEATURES, "the features")
        kinds.add(autoencoder_of(table))
        if len(kinds) > 1:
            names = ", ".join(f"{name} with {count}" for count, name in sorted(kinds))
            raise InputError(f"the tables of features are of different autoencoders: {names} features")
        num_means += _read_table(table, passage_set, feature_rows, next(iter(kinds))[0])
        require_at_most(
            "bytes of mean features", num_means * _MEAN_BYTES, cost.TASK.memory, "give fewer stories at a time"
        )
    missing = [
        passage
        for passage in passages
        if (passage, ALL) not in feature_rows.numbers and passage not in feature_rows.errors
    ]
    if missing:
        examples = ", ".join(map(shown, missing[:5]))
        raise InputError(f"the features lack {len(missing)} of {len(passages)} stories: {examples}")
    num_features = next(iter(kinds))[0]
    column = {
        name: np.array([_number(feature_rows.numbers.get((passage, ALL)), name) for passage in passages])
        for name in _NUMBERS
    }
    return StoryFeatures(
        num_features=num_features,
        parts={name: _part(feature_rows, name, passages, num_features) for name in PARTS},
        l0=column["l0"],
        squared_error=column["squared_error"],
        squared_norm=column["squared_norm"],
        errors={
            number: feature_rows.errors[passage]
            for number, passage in enumerate(passages)
            if passage in feature_rows.errors
        },
    )


def _read_table(table: pa.Table, passage_set: set[str], feature_rows: _Rows, num_features: int) -> int:
    """Add the rows of a table that are new, and return how many means they have."""
    names = ["passage_id", "part", *_NUMBERS, *ERROR_COLUMNS]
    rows = table.select(names).to_pylist()
    num_means = 0
    for row, features, means in zip(rows, _lists(table["features"]), _lists(table["means"]), strict=True):
        passage, part = key = row["passage_id"], row["part"]
        if part not in PARTS:
            raise InputError(f"part {shown(part)} of the features of {shown(passage)}; allowed: {', '.join(PARTS)}")
        if passage not in passage_set or key in feature_rows.numbers or passage in feature_rows.errors:
            continue
        error = _error(row, features, means, num_features)
        if error is None:
            feature_rows.means[key], feature_rows.numbers[key] = (features, means), row
            num_means += len(features)
        elif part == ALL:  # a story without marked tokens still has features
            feature_rows.errors[passage] = error
    return num_means


def _lists(column: pa.ChunkedArray) -> Iterator[np.ndarray]:
    """Yield the lists of a column; a null is empty."""
    for chunk in column.chunks:
        values = np.asarray(chunk.values)
        ends = np.asarray(chunk.offsets)
        valid = np.asarray(chunk.is_valid())
        for row, is_valid in enumerate(valid):
            yield values[ends[row] : ends[row + 1]] if is_valid else values[:0]


def _error(row: dict[str, Any], features: np.ndarray, means: np.ndarray, num_features: int) -> CellError | None:
    """Return why a row has no features. Raise InputError unless their numbers ascend and are known."""
    passage = row["passage_id"]
    if row["status"] not in (None, Status.OK):
        error = error_of(row)
        return CellError(error.status, f"{shown(passage)}: {error}")
    if not row["num_tokens"] or row["num_tokens"] < 0:
        reason = f"{shown(passage)} has no token of the part {row['part']}"
        return CellError(Status.TOO_FEW, reason)
    ascending = len(features) == 0 or (
        features[0] >= 0 and features[-1] < num_features and (np.diff(features) > 0).all()
    )
    if len(features) != len(means) or not ascending:
        raise InputError(
            f"the features of {shown(passage)} must ascend, be below {num_features}, and have one mean each; got "
            f"{len(features)} features and {len(means)} means"
        )
    if not np.isfinite(means).all():
        return CellError(Status.NON_FINITE, f"{shown(passage)} has a mean that is not finite")
    return None


def commonest(errors: Iterable[CellError | None], lacking: str) -> CellError:
    """Return the first error of the commonest status, with a message that starts with the number of all errors."""
    failures = [error for error in errors if error is not None]
    status = Counter(error.status for error in failures).most_common(1)[0][0]
    example = next(error for error in failures if error.status == status)
    return CellError(status, f"{len(failures)} {lacking}, e.g. {example}")


def _number(row: dict[str, Any] | None, name: str) -> float:
    value = None if row is None else row[name]
    return float("nan") if value is None else float(value)


def _part(feature_rows: _Rows, part: str, passages: Sequence[str], num_features: int) -> Part:
    nothing = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    lists = [feature_rows.means.get((passage, part), nothing) for passage in passages]
    ends = np.cumsum([0, *(len(features) for features, _ in lists)])
    indices, values = (np.concatenate([nothing[side], *(pair[side] for pair in lists)]) for side in (0, 1))
    means_PF = csr_matrix((values, indices, ends), shape=(len(passages), num_features))
    numbers = (feature_rows.numbers.get((passage, part)) for passage in passages)
    return Part(means_PF, np.array([0 if row is None else row["num_tokens"] for row in numbers]))
