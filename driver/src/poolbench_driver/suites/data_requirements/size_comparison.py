"""Two configurations compared at each size, from the answers of their pilots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import fmean

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_driver.pilots import PilotComparison, Power
from poolbench_driver.statistics.mcnemar import SUFFICIENT
from poolbench_driver.statistics.pilots import SizePilot, rotation_interval, sign_share

#: What names a fold, and counts of its test examples.
_FOLD, _COUNTS = ("size", "seed", "fold"), ("n", "only_second", "only_first", "first", "second")


@dataclass(frozen=True)
class SizeComparison:
    """A comparison of two configurations at one sample size, on the test examples that both answered.

    Attributes:
        counts: Training, development and test examples of a fold, as means over folds and seeds.
        accuracies: Accuracy of the first and of the second configuration.
        errors: Power of McNemar's test on one fold, with type-M and type-S errors. None without a difference.
        same_sign: Share of repeated subsamples of half of the examples whose difference has the sign of all.
    """

    size: int
    counts: tuple[float, float, float]
    accuracies: tuple[float, float]
    comparison: PilotComparison
    errors: Power | None
    same_sign: float

    @property
    def power(self) -> float:
        """Return the mean power over the seeds, where a seed that contradicts the mean has power 0."""
        return self.errors.power if self.errors is not None else 0.0

    @property
    def num_test(self) -> int:
        """Return the test examples that the power is of."""
        return round(self.counts[2])

    @property
    def pilot(self) -> SizePilot:
        """Return the pilot that a recommendation is computed from."""
        return SizePilot(self.size, self.counts[2], list(self.comparison.shares.values()))

    @property
    def is_collapsed(self) -> bool:
        """Return whether the interval holds 0 while the power is below .8: the two cannot be distinguished."""
        interval = self.comparison.interval
        return interval is not None and interval[0] <= 0 <= interval[1] and self.power < SUFFICIENT


def compare_sizes(
    first: pa.Table, second: pa.Table, groups: Mapping[str, str], alpha: float
) -> dict[int, SizeComparison | CellError]:
    """Compare two configurations at each sample size, the smallest first, from their PILOT_ANSWERS.

    A size is compared if both answered an example in every fold of every seed. Otherwise its value is the error.

    Args:
        groups: Group of each example (a pair, a document), which subsamples keep whole.

    Raises:
        CellError: The two configurations have no test example in common.
    """
    keys = [*_FOLD, "instance_id"]
    both = first.join(second.select([*keys, "right"]), keys, join_type="inner", right_suffix="_second")
    if not both.num_rows:
        raise CellError(Status.FAILED, "the two have no test example in common")
    sides = [both[name].to_numpy(zero_copy_only=False) for name in ("right", "right_second")]
    answered = ~(both["right"].is_null().to_numpy() | both["right_second"].is_null().to_numpy())
    first_n, second_n = ((side == True) & answered for side in sides)  # noqa: E712  (null is neither)
    counts = {
        "n": answered,
        "only_second": second_n & ~first_n,
        "only_first": first_n & ~second_n,
        "first": first_n,
        "second": second_n,
    }
    columns = {name: both[name] for name in (*_FOLD, "num_train", "num_dev")}
    table = pa.table({**columns, **{name: column.astype(int) for name, column in counts.items()}})
    totals = [*((name, "sum") for name in _COUNTS), ("num_train", "max"), ("num_dev", "max")]
    folds = table.group_by(_FOLD).aggregate(totals).sort_by([(name, "ascending") for name in _FOLD]).to_pylist()
    groups_n = np.array([groups[name] for name in both["instance_id"].to_pylist()])
    gaps_n, sizes_n = second_n.astype(int) - first_n, both["size"].to_numpy()
    compared: dict[int, SizeComparison | CellError] = {}
    for size, rows in groupby(folds, key=itemgetter("size")):
        size_folds = list(rows)
        is_whole = all(fold["n_sum"] for fold in size_folds)
        if is_whole:
            same_sign = sign_share(gaps_n[sizes_n == size], groups_n[sizes_n == size])
            compared[size] = _of_folds(size, size_folds, alpha, same_sign)
        else:
            compared[size] = _reason((first, second), size)
    return compared


def _of_folds(size: int, folds: Sequence[Row], alpha: float, same_sign: float) -> SizeComparison:
    """Return the comparison at one size, from the counts of its folds."""
    shares = dict[str, tuple[float, float]]()
    for seed, rows in groupby(folds, key=itemgetter("seed")):
        seed_folds = list(rows)
        num_answered = sum(fold["n_sum"] for fold in seed_folds)
        only_second, only_first = (
            sum(fold[name] for fold in seed_folds) / num_answered for name in ("only_second_sum", "only_first_sum")
        )
        shares[str(seed)] = only_second, only_first
    num_all = sum(fold["n_sum"] for fold in folds)
    num_train, num_dev, num_test = (
        fmean(fold[name] for fold in folds) for name in ("num_train_max", "num_dev_max", "n_sum")
    )
    differences = {seed: only_second - only_first for seed, (only_second, only_first) in shares.items()}
    of_folds = np.array([(fold["only_second_sum"] - fold["only_first_sum"]) / fold["n_sum"] for fold in folds])
    comparison = PilotComparison(
        effect=fmean(differences.values()),
        differences=differences,
        interval=rotation_interval(of_folds, num_test, num_train),
        shares=shares,
        num_items=round(num_test),
        discordance="counted",
    )
    return SizeComparison(
        size=size,
        counts=(num_train, num_dev, num_test),
        accuracies=(
            sum(fold["first_sum"] for fold in folds) / num_all,
            sum(fold["second_sum"] for fold in folds) / num_all,
        ),
        comparison=comparison,
        errors=comparison.power(round(num_test), alpha),
        same_sign=same_sign,
    )


def _reason(sides: Sequence[pa.Table], size: int) -> CellError:
    """Return why some fold of a size has no answer."""
    for table in sides:
        for row in table.select([*_FOLD, "status", "reason"]).to_pylist():
            if row["size"] == size and row["status"] is not None:
                return CellError(row["status"], f"seed {row['seed']}, fold {row['fold']}: {row['reason']}")
    return CellError(Status.FAILED, "a fold has no test example that both answered")
