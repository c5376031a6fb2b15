"""The official result tables as typed rows, with their source and our counterpart of each figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from poolbench.config import MODEL_PRESETS
from poolbench.errors import ConfigError, UnknownModelError, UnknownNameError
from poolbench_corpora.reading import SentFile, is_missing, records

#: Tables that ship with this package.
TABLES = ("official",)

_DATA = files("poolbench_driver.suites.poolbench.official").joinpath("data")


@dataclass(frozen=True)
class Column:
    """One figure of each cell."""

    id: str
    definition: str
    differs: str  # how our counterpart differs from it
    ours: Mapping[str, str] = field(hash=False)  # our metric by protocol
    low: float | None = None
    high: float | None = None
    scp: str | None = None  # what the ratio of a published D3 is taken of


@dataclass(frozen=True)
class OfficialModel:
    """A model of the table, by the source's name, its label on the leaderboard and our preset."""

    name: str
    label: str
    preset: str
    best_layer: int  # of all figures of the table
    layers: tuple[int, ...]  # that the source measured


@dataclass(frozen=True)
class OfficialStrategy:
    """A strategy of the table."""

    id: str
    ours: str | None  # our strategy, None where we have none
    differs: str = ""


@dataclass(frozen=True)
class Cell:
    """One figure of one model, strategy and concept."""

    model: str
    strategy: str
    concept: str
    column: str
    value: float | None


@dataclass(frozen=True)
class Mean:
    """A mean that the source gives, over the `concepts` of a strategy or the `strategies` of a concept."""

    model: str
    over: str
    of: str
    column: str
    value: float | None


@dataclass(frozen=True)
class LeaderboardLine:
    """A line of the leaderboard: a rank, and means over the models by column."""

    rank: int
    strategy: str
    family: str
    supervision: str
    means: Mapping[str, float] = field(hash=False)


@dataclass(frozen=True)
class Significance:
    """The source's tests of differences between strategies on D1."""

    friedman_p: float
    critical_difference: float
    num_blocks: int
    effective_blocks: float
    num_tiers: int
    concepts: tuple[str, ...]  # concepts of its blocks, which it does not name: they follow from its mean ranks
    mean_ranks: Mapping[str, float] = field(hash=False)
    pairs: Mapping[tuple[str, str], float] = field(hash=False)  # p-value of each pair that it calls different


@dataclass(frozen=True)
class OfficialTable:
    """One official table; `source` says where it comes from."""

    source: Mapping[str, Any] = field(hash=False)
    columns: tuple[Column, ...]
    models: tuple[OfficialModel, ...]
    strategies: tuple[OfficialStrategy, ...]
    cells: tuple[Cell, ...]
    means: tuple[Mean, ...]
    leaderboard: tuple[LeaderboardLine, ...]
    significance: Significance | None  # of the shipped table

    @cached_property
    def concepts(self) -> tuple[str, ...]:
        """Return the concepts in the table's order."""
        return tuple(dict.fromkeys(cell.concept for cell in self.cells))

    @cached_property
    def values(self) -> dict[tuple[str, str, str, str], float | None]:
        """Return the figures by model, strategy, concept and column."""
        return {(cell.model, cell.strategy, cell.concept, cell.column): cell.value for cell in self.cells}

    def model(self, name: str) -> OfficialModel:
        """Return a model by our preset, its Hugging Face id or the source's names; raise UnknownModelError."""
        for model in self.models:
            if name in (model.preset, MODEL_PRESETS[model.preset].source, model.name, model.label):
                return model
        raise UnknownModelError(name, [model.preset for model in self.models])


def official_table(name: str = "official") -> OfficialTable:
    """Return a table by name, or of a folder with files of the same format.

    A folder needs `source.yaml` and `cells-<model>.csv`; means, leaderboard and tests may be left out.

    Raises:
        UnknownNameError: It is neither a table nor a folder.
        ConfigError: A file of the folder is missing or malformed.
    """
    if name in TABLES:
        return _shipped(name)
    folder = Path(name)
    if not folder.is_dir():
        raise UnknownNameError("table", name, TABLES)
    try:
        return _read(folder)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(f"table {folder}: {type(error).__name__}: {error}") from None


@lru_cache(maxsize=len(TABLES))
def _shipped(name: str) -> OfficialTable:
    return _read(_DATA)


def _read(folder: Traversable) -> OfficialTable:
    source = yaml.safe_load(folder.joinpath("source.yaml").read_text("utf-8"))
    columns = tuple(Column(**column) for column in source.pop("columns"))
    models = tuple(OfficialModel(**{**m, "layers": tuple(m["layers"])}) for m in source.pop("models"))
    if unknown := [model.preset for model in models if model.preset not in MODEL_PRESETS]:
        raise UnknownModelError(unknown[0], MODEL_PRESETS)
    tests = source.pop("significance", None)
    return OfficialTable(
        columns=columns,
        models=models,
        strategies=tuple(OfficialStrategy(**strategy) for strategy in source.pop("strategies")),
        cells=tuple(cell for model in models for cell in _cells(folder, model.name, columns)),
        means=tuple(
            Mean(row["model"], row["over"], row["of"], column.id, _number(row[column.id]))
            for row in _lines(folder, "means", optional=True)
            for column in columns
        ),
        leaderboard=tuple(map(_leaderboard_line, _lines(folder, "leaderboard", optional=True))),
        significance=None if tests is None else _significance(folder, tests),
        source=source,
    )


def _significance(folder: Traversable, tests: Mapping[str, Any]) -> Significance:
    return Significance(
        **{**tests, "concepts": tuple(tests["concepts"])},
        mean_ranks={row["strategy"]: float(row["mean_rank"]) for row in _lines(folder, "mean_ranks")},
        pairs={(row["first"], row["second"]): float(row["p_value"]) for row in _lines(folder, "pairs")},
    )


def _cells(folder: Traversable, model: str, columns: tuple[Column, ...]) -> Iterator[Cell]:
    for row in _lines(folder, f"cells-{model}"):
        for column in columns:
            yield Cell(model, row["strategy"], row["concept"], column.id, _number(row[column.id]))


def _leaderboard_line(row: Mapping[str, str]) -> LeaderboardLine:
    identity = {name: row[name] for name in ("strategy", "family", "supervision")}
    means = {name: float(text) for name, text in row.items() if name not in identity and name != "rank"}
    return LeaderboardLine(rank=int(row["rank"]), **identity, means=means)


def _lines(folder: Traversable, name: str, *, optional: bool = False) -> list[dict[str, str]]:
    file = folder.joinpath(f"{name}.csv")
    if optional and not file.is_file():
        return []
    return [dict(values) for _, values in records(SentFile(file.name, file.read_bytes()))]


def _number(text: str) -> float | None:
    return None if is_missing(text) else float(text)
