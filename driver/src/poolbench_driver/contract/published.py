"""A published table of results as typed rows, with its source and our counterpart of each figure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from poolbench.config import MODEL_PRESETS
from poolbench.errors import UnknownModelError, UnknownNameError


@dataclass(frozen=True)
class PublishedColumn:
    """A column of the published table: one metric, and how our metric differs from it."""

    id: str
    definition: str
    differs: str  # how our counterpart differs from it
    ours: Mapping[str, str] = field(hash=False)  # our metric by protocol
    low: float | None = None
    high: float | None = None
    scp: str | None = None  # what the ratio of a published D3 is taken of


@dataclass(frozen=True)
class PublishedModel:
    """A model of the table: its name in the source, its label on the leaderboard, our preset, and its layers."""

    name: str
    label: str
    preset: str
    best_layer: int  # of all figures of the table
    layers: tuple[int, ...]  # that the source measured


@dataclass(frozen=True)
class PublishedStrategy:
    """A strategy of the table."""

    id: str
    ours: str | None  # our strategy, None where we have none
    differs: str = ""


@dataclass(frozen=True)
class PublishedCell:
    """One published value of one model, strategy and concept. The value is None if the table has no value there."""

    model: str
    strategy: str
    concept: str
    column: str
    value: float | None


@dataclass(frozen=True)
class PublishedTable:
    """A published table of results. `source` has the facts about its origin."""

    source: Mapping[str, Any] = field(hash=False)
    columns: tuple[PublishedColumn, ...]
    models: tuple[PublishedModel, ...]
    strategies: tuple[PublishedStrategy, ...]
    cells: tuple[PublishedCell, ...]
    layer_agreement: Mapping[tuple[str, str], float] = field(hash=False, default_factory=dict)  # by model and concept

    @cached_property
    def concepts(self) -> tuple[str, ...]:
        """Return the concepts in the table's order."""
        return tuple(dict.fromkeys(cell.concept for cell in self.cells))

    @cached_property
    def values(self) -> dict[tuple[str, str, str, str], float | None]:
        """Return the figures by model, strategy, concept and column."""
        return {(cell.model, cell.strategy, cell.concept, cell.column): cell.value for cell in self.cells}

    def model(self, name: str) -> PublishedModel:
        """Return a model by our preset, its Hugging Face id, or its name or label in the source.

        Raise UnknownModelError if the table has no such model.
        """
        for model in self.models:
            if name in (model.preset, MODEL_PRESETS[model.preset].source, model.name, model.label):
                return model
        raise UnknownModelError(name, [model.preset for model in self.models])

    def require_columns(self, names: Iterable[str]) -> None:
        """Raise UnknownNameError for a name that no column has."""
        column_ids = [column.id for column in self.columns]
        for name in names:
            if name not in column_ids:
                raise UnknownNameError("column", name, column_ids)
