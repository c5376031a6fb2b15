"""What a tracker gets of a run, and the registry of trackers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from poolbench.contracts import Row
from poolbench.registry import Registry
from poolbench.statuses import RunState
from poolbench_driver.records import Run


class Tracker(Protocol):
    """A record of one run in an experiment tracker. Methods are called in the order given here, all in one thread."""

    def started(self, run: Run, settings: Mapping[str, Any]) -> None:
        """Open a run in the tool, or continue the run with this id. `settings` are read from `config.resolved.yaml`."""

    def progress(self, done: int, failed: int, total: int) -> None:
        """Record how many tasks are done, failed and planned. A slow tracker gets only the newest numbers."""

    def figures(self, rows: Sequence[Row]) -> None:
        """Record the figures of a run that has ended with tables.

        Args:
            rows: One row for each ranked metric and entrant, such as a strategy. `value` is the mean of the cells, or
                null if any cell is null. `num_cells` counts all cells, `num_null` the null cells. `rank` is the mean
                rank, 1 for the best, or null if nothing was ranked. `results.parquet` in the run's folder has every
                cell.
        """

    def finished(self, state: RunState, report: Path | None) -> None:
        """Close the run. `report` is the path of its report page, or None if the run has no tables."""


@dataclass(frozen=True)
class TrackerKind:
    """A registered tracker."""

    id: str
    open: Callable[[], Tracker]  # makes the tracker of one run, in the thread that calls it
    package: str = ""  # what `pip install` needs, for a hint where it is missing


#: Trackers by name. `@TRACKERS.register("mine", package="mine")` decorates a class without arguments.
TRACKERS: Registry[TrackerKind] = Registry(
    "tracker", TrackerKind, group="poolbench.trackers", built_in=("poolbench_driver.trackers.built_in",)
)
