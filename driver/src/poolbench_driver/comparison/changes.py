"""Differences between two runs: values with intervals over concepts, statuses, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poolbench_driver.comparison.cells import cell_counts, cells_of_one_run, status_changes
from poolbench_driver.comparison.pairing import Row, pair_cells
from poolbench_driver.comparison.rank_changes import rank_changes, ranked_metrics
from poolbench_driver.comparison.values import value_changes


@dataclass(frozen=True)
class RunChanges:
    """What changed from the first run to the second.

    Attributes:
        summary: Counts: common cells, those only in one run, changed values, changed statuses.
        only_first: Cells that the second run lacks, counted by metric, and in what that run's cells differ.
        only_second: Cells that the first run lacks, likewise.
        statuses: Changes of status, counted, with an example of the new reason.
        values: Per metric (strategy ``*``: mean over all) and per strategy: mean difference over concepts with
            interval, permutation p and, over the strategies of a metric, Holm's correction.
        ranks: Per metric and strategy: both mean ranks over the common concepts, the change and its interval.
        agreement: Per metric: Spearman correlation of the two runs' mean ranks.
    """

    summary: dict[str, int]
    only_first: list[Row]
    only_second: list[Row]
    statuses: list[Row]
    values: list[Row]
    ranks: list[Row]
    agreement: list[Row]

    def changed(self) -> bool:
        """Whether any cell differs in presence, status or value."""
        return any(count for name, count in self.summary.items() if name != "common")

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def compare_runs(
    first: Sequence[Row],
    second: Sequence[Row],
    *,
    across: Iterable[str] = (),
    metrics: Sequence[str] | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> RunChanges:
    """Pairs two runs' result rows and says what changed.

    Args:
        first: Rows of one run.
        second: Rows of the other; differences are second minus first.
        across: Identity columns to look past, see ``ACROSS``.
        metrics: Only these; None takes all.
        num_resamples: Resamples of the concepts, and drawn sign patterns where they are too many to count.
        seed: Seed of both.

    Raises:
        ConfigError: Where the runs cannot be compared.
        InputError: Where a run has two rows of one cell.
    """
    pairing = pair_cells(_chosen(first, metrics), _chosen(second, metrics), across)
    ranks, agreement = rank_changes(pairing, ranked_metrics(first, second, metrics), num_resamples, seed)
    return RunChanges(
        summary=cell_counts(pairing),
        only_first=cells_of_one_run(pairing.only_first, second),
        only_second=cells_of_one_run(pairing.only_second, first),
        statuses=status_changes(pairing),
        values=value_changes(pairing, num_resamples, seed),
        ranks=ranks,
        agreement=agreement,
    )


def _chosen(rows: Sequence[Row], metrics: Sequence[str] | None) -> list[Row]:
    return [row for row in rows if metrics is None or row["metric"] in metrics]
