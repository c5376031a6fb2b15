"""The published result tables as typed rows, with their source and our counterpart of each figure."""

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

_DATA = files("poolbench_driver.suites.poolbench.published_table").joinpath("data")


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
class PublishedTable:
    """One published table; `source` says where it comes from."""

    source: Mapping[str, Any] = field(hash=False)
    columns: tuple[Column, ...]
    models: tuple[OfficialModel, ...]
    strategies: tuple[OfficialStrategy, ...]
    cells: tuple[Cell, ...]

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


def published_table(name: str = "official") -> PublishedTable:
    """Return a table by name, or of a folder with files of the same format.

    A folder needs `source.yaml` and `cells-<model>.csv`.

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
def _shipped(name: str) -> PublishedTable:
    return _read(_DATA)


def _read(folder: Traversable) -> PublishedTable:
    source = yaml.safe_load(folder.joinpath("source.yaml").read_text("utf-8"))
    columns = tuple(Column(**column) for column in source.pop("columns"))
    models = tuple(OfficialModel(**{**m, "layers": tuple(m["layers"])}) for m in source.pop("models"))
    if unknown := [model.preset for model in models if model.preset not in MODEL_PRESETS]:
        raise UnknownModelError(unknown[0], MODEL_PRESETS)
    return PublishedTable(
        columns=columns,
        models=models,
        strategies=tuple(OfficialStrategy(**strategy) for strategy in source.pop("strategies")),
        cells=tuple(cell for model in models for cell in _cells(folder, model.name, columns)),
        source=source,
    )


def _cells(folder: Traversable, model: str, columns: tuple[Column, ...]) -> Iterator[Cell]:
    file = folder.joinpath(f"cells-{model}.csv")
    for _, row in records(SentFile(file.name, file.read_bytes())):
        for column in columns:
            yield Cell(model, row["strategy"], row["concept"], column.id, _number(row[column.id]))


def _number(text: str) -> float | None:
    return None if is_missing(text) else float(text)
