"""What a suite is: the contract between one benchmark and the frame that runs it, and what a run needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from poolbench.errors import ConfigError
from poolbench_driver.config import REAL_TEXT, RunConfig, names_planted

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    import typer

    from poolbench.contracts import Row
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.contract.verification import Check, Say
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.stages.stage import Plan


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
    """Return one line for each thing that is missing, each once."""
    marks = {True: "missing", False: "note"}
    return list(dict.fromkeys(f"{marks[need.stops]}: {need}" for need in found))


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
    """What a suite compares, and by what."""

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
        """Return what a block is called."""
        return self.block_name or self.block

    def is_apart(self, row: Mapping[str, Any]) -> bool:
        """Return whether a result row is of another quantity than what is ranked; a row with `is_apart` says so."""
        return bool(row.get("is_apart", self.apart is not None and row.get(self.apart) is not None))


@dataclass(frozen=True)
class Tables:
    """What a suite computes from the artifacts of a run.

    Attributes:
        rows: Result rows: measures with the columns that identify their cells. The frame adds what all rows of a run
            share, and the ranks.
        others: Tables of the suite's own by name, as rows or as tables.
        unranked: Further tables of result rows by name and protocol, such as figures by published definitions.
    """

    rows: list[Row]
    others: Mapping[str, list[Row] | pa.Table] = field(default_factory=dict)
    unranked: Mapping[str, list[Row]] = field(default_factory=dict)


#: Whether entrants were right, by ranked block (set or concept), entrant and test item. Where the board averages over
#: layers, an entrant is named with its layer: its name, `AT_LAYER` and the layer.
Answers = dict[str, dict[str, dict[str, bool]]]
AT_LAYER = " layer "


@dataclass(frozen=True)
class Units:
    """What the primary metric is a mean over, where a board has one block, such as subjects or words."""

    name: str  # what one of them is called, in the singular
    values: Mapping[str, Mapping[str, float]]  # by entrant and unit; their mean is the primary metric


class FinishedRun(Protocol):
    """What a suite reads of a finished run."""

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


@dataclass(frozen=True)
class Description:
    """What a dry run says about a plan."""

    lines: Sequence[str] = ()  # for the terminal
    fields: Mapping[str, Any] = field(default_factory=dict)  # the same for JSON
    texts: Mapping[str, int] = field(default_factory=dict)  # numbers of texts that it generates, by what they are for


@dataclass(frozen=True)
class Conclusion:
    """What a suite makes of the tables of a run."""

    wrong: Sequence[str] = ()  # what does not hold; such a run has failed
    shown: str = ""  # what the command prints in any case, before the paths of the files
    files: Mapping[str, Any] = field(default_factory=dict)  # contents of JSON files in the run's folder, by name


@dataclass(frozen=True)
class Recorded:
    """What a suite makes of a table that others recorded."""

    rows: list[dict[str, Any]]  # one object for each line of the board, for JSON
    markdown: str  # the board as text, and what the table says about published claims
    notes: Sequence[str] = ()  # what could not be used, which the text says too


class Suite(ABC, Generic[Config, Scope, Planned]):
    """A benchmark: what it asks of a model, as tasks of the services, and how the answers are read.

    A suite is a subclass in a folder of its own, and one registered instance. The frame does the rest: it sends the
    tasks, resumes, ranks the entrants, and writes tables, page and record. A listing of suites loads nothing
    heavy, so methods import what they need in their bodies.
    """

    id: str  # value of the column `suite`
    version: int = 1  # raised when the suite's meaning changes
    summary: str  # one sentence
    reference: str = ""  # where the benchmark is published
    citation: str = ""  # one line, or BibTeX
    dataset: str = ""  # data of the reference; a run may read others, which its rows name
    revision: str = ""  # what was read of these data
    licence: str = ""  # that of these data; empty if it is not known
    config: type[Config]  # its fields become `--set` paths and keys of the YAML
    metrics: tuple[MetricInfo, ...] = ()
    board: BoardSpec
    text_tables: tuple[str, ...] = ()  # tables with examples of the texts that it measures; its page shows them too

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a named preset; `given` is what file and command line say."""
        return {"budget": self.config.amounts(name)}

    def real_text(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings by which a pretrained model reads real text, where `given` names no corpus.

        They are the corpus that ships, if `given` names concepts or probing sets, and none of these is planted.
        """
        has_source = "corpus" in self.config.model_fields and (given.get("concepts") or given.get("sets"))
        return REAL_TEXT if has_source and not names_planted(given.get("sets", ())) else {}

    def way(self, protocol: str) -> Mapping[str, Any]:
        """Return the settings of a protocol: how the reference reads and steers, for `published`."""
        return {}

    def check(self, config: Config) -> None:
        """Raise UnknownNameError or ConfigError for settings that no cluster could measure."""

    def missing(self, config: Config, session: Session) -> list[Need]:
        """Return what a run lacks on a cluster, with the flag that replaces it."""
        return []

    def stand_ins(self, config: Config, session: Session) -> tuple[Config, ModelInfo | None, list[Need]]:
        """Return settings and model that a dry run can count with where something is missing, and what that is."""
        return config, None, []

    @abstractmethod
    def resolve(self, config: Config, session: Session, model: ModelInfo | None = None) -> Scope:
        """Return what is measured, with every name checked, and every source read that the plan depends on.

        Args:
            model: The model's properties; None asks for them.

        Raises:
            UnknownNameError: With the nearest valid names.
            ConfigError: The run cannot be.
        """

    @abstractmethod
    def plan(self, scope: Scope) -> Planned:
        """Return the plan of what `resolve` returned. It is a pure function."""

    def describe(self, plan: Planned) -> Description:
        """Return what a dry run says about a plan beside its tasks and costs."""
        return Description()

    @abstractmethod
    def assemble(self, plan: Planned, source: RowSource) -> Tables:
        """Return result rows and tables from the artifacts of a plan and its failures."""

    def report(self, tables: Mapping[str, pa.Table], config: Config) -> Page | None:
        """Return the page of a run from its tables by name; None for a board of its entrants.

        Raises:
            NotFoundError: The run has no results yet.
        """
        return None

    def joined(self, runs: Sequence[FinishedRun]) -> Page | None:
        """Return the board of several runs; None for ranks alone. Raise ConfigError if none can be made."""
        return None

    def evidence(self) -> Evidence:
        """Return what stands behind a cell of a run's results."""
        from poolbench_driver.contract.evidence import Evidence

        return Evidence()

    def answers(self, tables: Mapping[str, pa.Table]) -> Answers:
        """Return which test items each entrant had right, for the power of comparisons.

        Raises:
            ConfigError: The suite keeps no answer of single items.
        """
        raise ConfigError(f"runs of the suite {self.id} keep no answers of single items to compare")

    def units(self, tables: Mapping[str, pa.Table]) -> Units | None:
        """Return what the primary metric is a mean over, for the power of comparisons; None for the board's blocks."""
        return None

    def verify(self, run: FinishedRun, say: Say) -> Iterator[Check]:
        """Yield what a run's scores of single items show of its figures, without a model; nothing where it has none."""
        return iter(())

    def behind(self, plan: Planned, block: str, entrant: str, layer: int) -> frozenset[str]:
        """Return the keys of the artifacts that the figures of a cell of the board are made from.

        Raises:
            ConfigError: No cell of the suite is measured alone.
        """
        raise ConfigError(f"no cell of the suite {self.id} is measured alone; leave out --rerun")

    def conclude(self, tables: Mapping[str, pa.Table], config: Config) -> Conclusion:
        """Return what does not hold in the tables of a run."""
        return Conclusion()

    def recorded(self, source: Path) -> Recorded:
        """Return the board of a recorded table of others, without a cluster and without a run.

        Its figures are published ones; they are never ranked together with those of runs.

        Args:
            source: A file, or a folder, as the suite defines.

        Raises:
            ConfigError: The suite does not read recorded tables.
            InputError: The table cannot be used; the message names file and line.
        """
        raise ConfigError(f"the suite {self.id!r} does not read recorded tables; leave out --table")

    def among_recorded(self, source: Path, joined: Sequence[FinishedRun | Path]) -> Recorded:
        """Return the board of a recorded table with runs, or results of the reference's own tool, ranked in it.

        Raises:
            ConfigError: The suite joins nothing, or what is joined cannot be compared with the table.
            InputError: A table cannot be used; the message names file and line.
        """
        raise ConfigError(f"the suite {self.id!r} joins no runs with recorded tables; leave out --join")

    def commands(self) -> typer.Typer | None:
        """Return commands of its own for the command line; a group such as `export` joins the frame's group."""
        return None
