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
    """Takes one run into a tool that follows experiments. The calls come in this order, all in one thread."""

    def started(self, run: Run, settings: Mapping[str, Any]) -> None:
        """Open the run, or continue the one with its id. `settings` are those of `config.resolved.yaml`."""

    def progress(self, done: int, failed: int, total: int) -> None:
        """Take the numbers of done, failed and all tasks. A slow tracker gets only the newest numbers."""

    def figures(self, rows: Sequence[Row]) -> None:
        """Take the figures of a run that has ended with tables.

        Args:
            rows: One for each ranked metric and entrant, such as a strategy. `value` is the mean of its cells, null if
                one of them is; `num_cells` and `num_null` count them. `rank` is its mean rank, 1 for the best; null
                where nothing was ranked. `results.parquet` in the run's folder has every cell.
        """

    def finished(self, state: RunState, report: Path | None) -> None:
        """Close the run. `report` is the page of a run that has tables."""


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
