"""Further abilities of a suite, and what they return.

A suite that has what a protocol names has the ability; the frame asks with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from poolbench.errors import ConfigError

if TYPE_CHECKING:
    from poolbench.contracts import Row
    from poolbench.settings import ClusterSettings
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page, Part
    from poolbench_driver.contract.published import PublishedModel, PublishedTable
    from poolbench_driver.contract.suite import FinishedRun
    from poolbench_driver.contract.verification import Check, Say
    from poolbench_driver.models import ModelInfo


@dataclass(frozen=True)
class Need:
    """One thing that a run needs."""

    what: str  # the thing, as one says it of what is not there
    found: bool  # whether it is there
    instead: str  # how to get it, and the flag that replaces it
    stops: bool = True  # whether the run cannot start without it
    nulls: tuple[str, ...] = ()  # metrics that are null without it

    def __str__(self) -> str:
        return f"{self.what}; {self.instead}"


def require_all(found: Iterable[Need]) -> None:
    """Raise ConfigError that names everything without which a run cannot start."""
    if stopping := list(dict.fromkeys(str(need) for need in found if need.stops)):
        raise ConfigError(f"the run cannot start, {len(stopping)} missing: {' | '.join(stopping)}")


def lines(found: Sequence[Need]) -> list[str]:
    """Return one line for each unmet need, without duplicates."""
    marks = {True: "missing", False: "note"}
    return list(dict.fromkeys(f"{marks[need.stops]}: {need}" for need in found))


@runtime_checkable
class ListsNeeds(Protocol):
    """A suite whose runs need more than a model."""

    def missing(self, config: Any, session: Session) -> list[Need]:
        """Return the needs of a run that the cluster does not meet, each with the flag that replaces it."""

    def stand_ins(self, config: Any, session: Session) -> tuple[Any, ModelInfo | None, list[Need]]:
        """Return settings and a model for a dry run, with substitutes for missing things, and the unmet needs."""


#: Whether entrants were right, by ranked block (set or concept), entrant and test item. Where the board averages over
#: layers, an entrant is named with its layer: its name, `AT_LAYER` and the layer.
Answers = dict[str, dict[str, dict[str, bool]]]
AT_LAYER = " layer "


@runtime_checkable
class KeepsAnswers(Protocol):
    """A suite whose tables say which test items each entrant answered correctly."""

    def answers(self, run: FinishedRun) -> Answers:
        """Return which test items each entrant answered correctly, for the power of comparisons."""


@dataclass(frozen=True)
class Units:
    """The units, such as subjects or words, whose mean is the primary metric of a board with one block."""

    name: str  # what one of them is called, in the singular
    values: Mapping[str, Mapping[str, float]]  # by entrant and unit; their mean is the primary metric


@runtime_checkable
class HasUnits(Protocol):
    """A suite whose primary metric is a mean over other units than the board's blocks."""

    def units(self, run: FinishedRun) -> Units:
        """Return the units with their values, for the power of comparisons."""


@runtime_checkable
class ShowsEvidence(Protocol):
    """A suite that shows the evidence behind a cell of a run's results."""

    evidence: Evidence


@runtime_checkable
class JoinsRuns(Protocol):
    """A suite with its own board of several runs. For other suites, the frame shows only ranks."""

    def joined(self, runs: Sequence[FinishedRun], page: Page) -> Page:
        """Return the page of several runs. Raise ConfigError if there can be no such page.

        Args:
            page: The frame's page of these runs, as in `Suite.report`.
        """


@dataclass(frozen=True)
class Conclusion:
    """The conclusion of a suite from the tables of a run."""

    wrong: Sequence[str] = ()  # what does not hold; such a run has failed
    shown: str = ""  # what the command prints in any case, before the paths of the files
    files: Mapping[str, Any] = field(default_factory=dict)  # contents of JSON files in the run's folder, by name


@runtime_checkable
class Concludes(Protocol):
    """A suite that expects something of every run."""

    def conclude(self, run: FinishedRun) -> Conclusion:
        """Return the expectations that the tables of a run do not meet, and the text to print and write."""


@runtime_checkable
class VerifiesFigures(Protocol):
    """A suite whose figures can be computed again from the tables of a run, without a model."""

    def verify(self, run: FinishedRun, say: Say) -> Iterator[Check]:
        """Yield checks of a run's figures against its scores of single items. A run without such scores yields none."""


@runtime_checkable
class ReadsScores(Protocol):
    """A suite that computes figures from scores of passages that another program made."""

    metrics_of_scores: tuple[str, ...]  # metrics of these figures; a submission must not state them

    def with_scores(self, config: Any, entrant: str) -> Any:
        """Return the settings of a run whose only entrant has such scores."""

    def figures_of_scores(self, run: FinishedRun, say: Say) -> list[Row]:
        """Return the result rows that follow from the scores of a run."""


@runtime_checkable
class MeasuresAlone(Protocol):
    """A suite whose cells can be measured alone."""

    def behind(self, plan: Any, block: str, entrant: str, layer: int) -> frozenset[str]:
        """Return the keys of the artifacts that the figures of a cell of the board are made from."""


@dataclass(frozen=True)
class Recorded:
    """The board that a suite makes from a table of published figures."""

    rows: list[dict[str, Any]]  # one object for each line of the board, for JSON
    markdown: str  # the board as text, and what the table says about published claims
    notes: Sequence[str] = ()  # what could not be used, which the text says too


@runtime_checkable
class ReadsRecorded(Protocol):
    """A suite that reads tables of published figures. These are never ranked together with the figures of runs."""

    def recorded(self, source: Path) -> Recorded:
        """Return the board of a recorded table, without a cluster and without a run.

        Args:
            source: A file, or a folder, as the suite defines.

        Raises:
            InputError: The table cannot be used; the message names file and line.
        """


@runtime_checkable
class ReadsOtherBenchmarks(Protocol):
    """A suite that compares its board with the scores of the same models in other benchmarks."""

    def beside(self, board: Sequence[FinishedRun] | Path, others: Path) -> Part:
        """Return how far a board, of runs or of a recorded table, orders models as a table of other benchmarks does.

        Raise InputError with file and line if a table cannot be used.
        """


@runtime_checkable
class JoinsRecorded(Protocol):
    """A suite that ranks runs among the entrants of a recorded table."""

    def among_recorded(self, source: Path, joined: Sequence[FinishedRun | Path]) -> Recorded:
        """Return the board of a recorded table with runs, or results of the reference's own tool, ranked in it.

        Raises:
            ConfigError: A joined run or result cannot be compared with the table.
            InputError: A table cannot be used; the message names file and line.
        """


@runtime_checkable
class RepeatsPublished(Protocol):
    """A suite whose runs measure the cells of published tables. `SuiteInfo.published_tables` has their names."""

    def published_table(self, name: str) -> PublishedTable:
        """Return a published table by its name, or read it from a folder.

        Raises:
            UnknownNameError: `name` is neither the name of a table nor a folder.
            ConfigError: A file of the folder is missing or malformed.
        """

    def settings_of_run(self, table: PublishedTable, model: PublishedModel, corpus: str) -> Mapping[str, Any]:
        """Return the settings of a run that measures the cells of a model, with passages from a folder or source."""

    def other_settings(self, config: Any) -> list[str]:
        """Return sentences on the settings in which a run differs from the published run of the same model."""

    def needs(self, config: Any, cluster: ClusterSettings | None) -> list[Need]:
        """Return the needs of a run, met or not, in the order in which the run would fail without them.

        Args:
            cluster: The cluster of the run. None if no cluster is running yet.
        """
