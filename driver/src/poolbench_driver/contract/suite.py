"""What a suite is: the contract between one benchmark and the frame that runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from poolbench_driver.config import RunConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench.contracts import Row
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.stages.stage import Plan


Config = TypeVar("Config", bound=RunConfig)
Scope = TypeVar("Scope")
Planned = TypeVar("Planned", bound="Plan")


@dataclass(frozen=True)
class MetricInfo:
    """Metadata of one metric."""

    id: str
    summary: str  # its definition in one line
    higher_is_better: bool | None  # none for figures that are neither (a chosen strength, a chance check)
    low: float | None = None  # smallest possible value; None if unbounded
    high: float | None = None  # largest possible value; None if unbounded
    version: int = 1  # raised when the definition changes
    variants: bool = False  # whether ids of its rows go on with the name of a variant, such as `d1.direction.C1`
    rank_decimals: int | None = None  # decimals that ranks compare, where the others are jitter; None: all


@dataclass(frozen=True)
class BoardSpec:
    """The board of a suite: its entrants, blocks and metrics."""

    ranked: tuple[str, ...]  # metrics that entrants are ranked by. A run without a value of any of them has failed.
    shown: tuple[str, ...]  # metrics that the leaderboard has columns of, the primary one first
    entrant: str = "strategy"  # column of result rows that names what is compared
    block: str = "concept"  # column of result rows over which ranks are averaged
    averaged: bool = True  # whether cells are means over models and layers; not where an entrant is a model at a layer
    apart: str | None = None  # column that only rows of another quantity have a value in; these are not ranked
    competing: bool = True  # whether entrants compete; not where each of them is a comparison
    block_name: str = ""  # what a block is called, where it is not the name of the column
    planned_difference: float = 0.02  # of the primary metric: what the power of a comparison is planned for

    @property
    def primary(self) -> str:
        """Return the metric whose ranks are shown in full."""
        return self.shown[0]

    @property
    def unit(self) -> str:
        """Return the name of a block."""
        return self.block_name or self.block

    def is_apart(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is of another quantity than the ranked one. A column `is_apart` decides if present."""
        return bool(row.get("is_apart", self.apart is not None and row.get(self.apart) is not None))


@dataclass(frozen=True)
class Tables:
    """The tables that a suite computes from the artifacts of a run.

    Attributes:
        rows: Result rows: measures with the columns that identify their cells. The frame adds what all rows of a run
            share, and the ranks.
        others: The suite's own tables by name, as rows or as tables.
        unranked: Further tables of result rows by name and protocol, such as figures by published definitions.
    """

    rows: list[Row]
    others: Mapping[str, list[Row] | pa.Table] = field(default_factory=dict)
    unranked: Mapping[str, list[Row]] = field(default_factory=dict)


class FinishedRun(Protocol):
    """A finished run as suites read it."""

    @property
    def id(self) -> str:
        """Return the id of the run."""

    @property
    def config(self) -> RunConfig:
        """Return the settings."""

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """Return the tables by name, such as `results`."""

    @property
    def model(self) -> ModelInfo | None:
        """Return the model as the run's folder has it, or None if the folder does not have it."""

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        """Return the rows of a table with the given values. The list is empty if the run has no such table."""


@dataclass(frozen=True)
class Description:
    """Facts about a plan for a dry run."""

    lines: Sequence[str] = ()  # for the terminal
    fields: Mapping[str, Any] = field(default_factory=dict)  # the same for JSON
    texts: Mapping[str, int] = field(default_factory=dict)  # numbers of texts that it generates, by what they are for

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Description:
        """Return a description that counts each kind of thing. `_` in a name is a space on the terminal."""
        return cls([", ".join(f"{number} {name.replace('_', ' ')}" for name, number in numbers.items())], numbers)


class Suite(ABC, Generic[Config, Scope, Planned]):
    """One benchmark: the tasks that measure a model, and the rows and the page made from their artifacts.

    The frame does the rest: it sends the tasks, resumes, ranks the entrants, and writes tables, page and record.
    Further abilities of a suite are the protocols of `contract.abilities`.
    """

    def check(self, config: Config) -> None:
        """Raise UnknownNameError or ConfigError for settings that no cluster could measure."""

    @abstractmethod
    def resolve(self, config: Config, session: Session, model: ModelInfo | None = None) -> Scope:
        """Return the scope of a run: every name checked, and every source read that the plan depends on.

        Args:
            model: The model's properties. If None, they are looked up.

        Raises:
            UnknownNameError: A name is unknown. The message has the nearest valid names.
            ConfigError: The run is not possible.
        """

    @abstractmethod
    def plan(self, scope: Scope) -> Planned:
        """Return the plan of a scope from `resolve`. This is a pure function."""

    def describe(self, plan: Planned) -> Description:
        """Return facts about a plan for a dry run. The frame adds the tasks and costs."""
        return Description()

    @abstractmethod
    def assemble(self, plan: Planned, source: RowSource) -> Tables:
        """Return the result rows and tables of a run from the artifacts of its tasks and their failures."""

    def report(self, run: FinishedRun, page: Page) -> Page:
        """Return the page of a run. Suites without their own method show the frame's page.

        Args:
            page: The frame's page. It has a board of the entrants, and the first entrant as the answer. Its problems
                have one line for each reason of nulls and each note of the plan.
        """
        return page


@dataclass(frozen=True, kw_only=True)
class SuiteInfo:
    """Metadata of a suite. The registry holds these alone, so that a listing of suites loads nothing heavy."""

    id: str  # value of the column `suite`
    title: str = ""  # its name on pages, where that is not the id
    summary: str  # one sentence
    dataset: str  # data of the reference; a run may read others, which its rows name
    revision: str  # what was read of these data; empty if it is not known
    licence: str  # that of these data; empty if it is not known
    reference: str = ""  # where the benchmark is published
    citation: str = ""  # one line, or BibTeX
    config: type[RunConfig]  # its fields become `--set` paths and keys of the YAML; it says the presets too
    metrics: tuple[MetricInfo, ...] = ()
    board: BoardSpec
    text_tables: tuple[str, ...] = ()  # tables with examples of the texts that it measures; its page shows them too
    published_tables: tuple[str, ...] = ()  # names of published tables whose cells its runs can repeat
    load: Callable[[], Suite[Any, Any, Any]]  # imports what the suite does, and returns it
