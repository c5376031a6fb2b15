"""The targets of a probing task, and the split into train, dev and test."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import INSTANCES, require_columns
from poolbench.errors import CellError, InputError, shown
from poolbench.statistics.folds import SPLITS, connected_groups, drawn_splits
from poolbench.statuses import Status
from poolbench_prober.inputs.instances import Parts


@dataclass(frozen=True)
class Targets:
    """The instances of one task."""

    ids: tuple[str, ...]  # instance ids [n]
    classes: tuple[str, ...]  # names of the classes, sorted; empty for regression
    values: np.ndarray  # class numbers, or the real values to predict [n]
    groups: np.ndarray  # group of each instance; a group is in one split [n]
    splits: np.ndarray | None = None  # `train`, `dev` or `test` of each instance [n]; None where no split is given
    words: np.ndarray | None = None  # word type of each instance, for control labels per type; None without
    parts: tuple[Parts, ...] | None = None  # passages of the one or two parts of each instance [n]; None where unknown

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Read the instances in `table` (INSTANCES). Raise InputError for a malformed or inconsistent column."""
        require_columns(table, INSTANCES, "the instances")
        columns: dict[str, list[Any]] = {name: table[name].to_pylist() for name in INSTANCES.names}
        ids = columns["instance_id"]
        if not ids or None in ids or len(set(ids)) != len(ids):
            distinct = f"{len(ids)}, {len(set(ids))} of them different"
            raise InputError(f"instance ids must be present and unique; got {distinct}")
        classes, values = _values(columns["label"], columns["value"])
        groups, splits = connected_groups(columns["group"]), _all_or_none("split", columns["split"], SPLITS)
        if splits is not None:
            pairs = np.unique(np.stack([groups, np.unique(splits, return_inverse=True)[1]]), axis=1)
            if parted := pairs.shape[1] - len(np.unique(groups)):
                raise InputError(
                    f"groups lie in several splits ({parted} times); a group never parts: give other splits or groups"
                )
        return cls(
            ids=tuple(ids),
            classes=classes,
            values=values,
            groups=groups,
            splits=splits,
            words=_all_or_none("word", columns["word"]),
            parts=_parts(ids, columns["first"], columns["second"]),
        )

    @property
    def is_regression(self) -> bool:
        """Return whether real values are predicted."""
        return not self.classes

    def take(self, rows: np.ndarray) -> Self:
        """Return the instances at `rows`."""
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            values=self.values[rows],
            groups=self.groups[rows],
            splits=None if self.splits is None else self.splits[rows],
            words=None if self.words is None else self.words[rows],
            parts=None if self.parts is None else tuple(self.parts[row] for row in rows),
        )

    def seen(self, train: np.ndarray) -> np.ndarray | None:
        """Return whether the whole input of each instance occurs in train [n], or None if inputs are unknown."""
        if self.parts is None:
            return None
        train_parts = {self.parts[row] for row in train}
        return np.array([parts in train_parts for parts in self.parts])

    def split(self, seed: int) -> dict[str, np.ndarray]:
        """Return the rows of train, dev and test. Raise CellError if there are too few.

        If no split is given, 70/10/20 % of the instances are drawn by seed, as whole groups.
        """
        splits = self.splits if self.splits is not None else drawn_splits(self.groups, seed)
        rows = {name: np.flatnonzero(splits == name) for name in SPLITS}
        for name in ("train", "test"):
            if len(rows[name]) < 2:
                raise CellError(
                    Status.TOO_FEW, f"{len(rows[name])} instances in {name} of {len(self.ids)}; 2 are needed"
                )
        values = self.values[rows["train"]]
        distinct = np.unique(values)
        if len(distinct) < 2:
            only = f"label {self.classes[int(distinct[0])]!r}" if self.classes else f"value {distinct[0]}"
            raise CellError(Status.ONE_CLASS, f"all {len(values)} training instances have the {only}")
        return rows


def _values(labels: list[str | None], values: list[float | None]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return classes and class numbers, or no classes and the real values."""
    if all(label is not None for label in labels) and all(value is None for value in values):
        classes, codes = np.unique(np.array(labels, dtype=object).astype(str), return_inverse=True)
        return tuple(classes.tolist()), codes
    if any(label is not None for label in labels) or any(value is None for value in values):
        raise InputError("every instance needs a label, or every instance a value; the instances mix or lack them")
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("the values of a regression must be numbers") from None
    if not np.isfinite(numbers).all():
        raise InputError(f"{int((~np.isfinite(numbers)).sum())} of {len(numbers)} values are not finite")
    return (), numbers


def _parts(ids: list[str], first: list[list[str] | None], second: list[list[str] | None]) -> tuple[Parts, ...]:
    """Return the parts of each instance. Raise InputError for an empty or repeated part, or pairs beside others."""
    pairs = any(second)
    parts = tuple(
        tuple(tuple(part or ()) for part in ((one, other) if pairs else (one,)))
        for one, other in zip(first, second, strict=True)
    )
    for instance, instance_parts in zip(ids, parts, strict=True):
        if not all(part and None not in part and len(set(part)) == len(part) for part in instance_parts):
            what = "first and second" if pairs else "first"
            raise InputError(f"instance {shown(instance)}: {what} must name one or more passages, each once")
    return parts


def _all_or_none(name: str, column: list[str | None], vocabulary: tuple[str, ...] | None = None) -> np.ndarray | None:
    if all(entry is None for entry in column):
        return None
    unknown = sorted({str(entry) for entry in column if entry is None or (vocabulary and entry not in vocabulary)})
    if unknown:
        allowed = f"one of {', '.join(vocabulary)}" if vocabulary else "a word"
        raise InputError(f"{name} must be {allowed} for every instance or null for all; got {', '.join(unknown[:5])}")
    return np.array(column)


def control_values(targets: Targets, train: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """Return labels (or values) of the control task for every instance [n].

    Args:
        kind: `permuted` shuffles labels within train and leaves the true labels elsewhere, for tasks on texts.
            `word_type` draws one label per word type from the labels of train, for tasks on tokens. `permuted_all`
            shuffles labels over all splits, as the published protocols do.

    Raises:
        InputError: If `word_type` is requested without word types.
    """
    rng = np.random.default_rng((seed, 1))
    values = targets.values.copy()
    if kind == "permuted_all":
        return np.asarray(rng.permutation(values))
    if kind == "permuted":
        values[train] = rng.permutation(values[train])
        return values
    if targets.words is None:
        raise InputError("control labels per word type need the word of every instance; send them or use 'permuted'")
    types, type_of = np.unique(targets.words, return_inverse=True)
    drawn: np.ndarray = rng.choice(values[train], size=len(types))
    return drawn[type_of]
