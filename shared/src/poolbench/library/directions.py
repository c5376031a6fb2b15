"""The directions of runs by name, so that ad-hoc requests steer with what a run has made.

A run that has ended leaves the table `directions` (columns: `SCHEMA`) among its files in the object store, for each
concept the best direction first. A name means the latest run of the model that has it.
"""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poolbench.concepts import refuse_restricted
from poolbench.config import ModelRef
from poolbench.contracts.wire import RUN_FILES, RUNS_FOLDER
from poolbench.errors import IntegrityError, NotFoundError
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.base import ObjectInfo

TABLE = "directions"
#: Seconds for which a listing of the tables of all runs answers. It keeps an answer when a run has ended since.
LISTED_S = 3.0
_SHOWN = 8  # cells in a message
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "model_revision", "concept", "strategy")),
        ("layer", pa.int32()),
        *((name, pa.string()) for name in ("construction", "key")),
        *((name, pa.float64()) for name in ("d1", "gain", "gain_where_chosen", "best_strength", "fluent_strength")),
    ]
)


@dataclass(frozen=True)
class NamedDirection:
    """A direction that requests can name.

    Attributes:
        construction: Method that made the vector.
        key: Key of the artifact that holds the vector.
        d1: AUROC of the strategy at this layer; None if the run has no value.
        gain: `d2.best_gain` of the direction, or None if the run has no value.
        gain_where_chosen: Gain on the half of the openings that `gain` is not computed on. None in tables of earlier
            releases.
        best_strength: `d2.best_strength`, the strength that `gain` is computed at. None if the run did not steer, or
            steered in another unit, and in tables of earlier releases.
        fluent_strength: Highest strength in residual norms at which the run's texts were fluent. None if the run did
            not steer, or steered in another unit.
    """

    run: str
    model: str
    model_revision: str
    concept: str
    strategy: str
    layer: int
    construction: str
    key: str
    d1: float | None
    gain: float | None
    gain_where_chosen: float | None
    best_strength: float | None
    fluent_strength: float | None

    def __str__(self) -> str:
        return f"{self.concept} by {self.strategy} at layer {self.layer}, of run {self.run}"

    def fits(self, model: ModelRef) -> bool:
        """Return whether the direction was made in this model.

        If the model's revision is known, the weights must match too.
        """
        return self.model == model.id and model.revision in (None, self.model_revision)

    def facts(self) -> dict[str, Any]:
        """Return the facts that identify the direction to a reader."""
        names = ("run", "concept", "strategy", "layer", "construction", "fluent_strength")
        return {name: getattr(self, name) for name in names}


class NamedDirections:
    """The directions of an object store.

    The latest tables and vectors are cached. Several threads may share the object.
    """

    def __init__(self, artifacts: Artifacts, listed_s: float = LISTED_S) -> None:
        self._artifacts, self._listed_s = artifacts, listed_s
        self._listing: tuple[float, list[ObjectInfo]] = (-math.inf, [])
        self._read = lru_cache(128)(self._load)
        self.vector = lru_cache(64)(self._vector)

    def all(self) -> Iterator[NamedDirection]:
        """Yield the directions of all runs: the latest run first, the best direction of each concept first.

        Raises:
            IntegrityError: At the end, if the table of a run is damaged.
        """
        yield from self._of(self._tables())

    def _tables(self) -> list[ObjectInfo]:
        """Return the tables of all runs, the latest first, by a new listing."""
        listed_at_s, suffix = time.monotonic(), f"/{RUN_FILES}{TABLE}.parquet"
        tables = [info for info in self._artifacts.store.list(f"{RUNS_FOLDER}/") if info.path.endswith(suffix)]
        tables.sort(key=lambda info: info.modified_s, reverse=True)
        self._listing = (listed_at_s, tables)
        return tables

    def _of(self, tables: Iterable[ObjectInfo]) -> Iterator[NamedDirection]:
        damaged = list[IntegrityError]()
        for info in tables:
            try:
                yield from self._read(info)
            except IntegrityError as error:
                damaged.append(error)
        if damaged:
            raise damaged[0]

    def find(
        self,
        model: ModelRef,
        concept: str,
        strategy: str | None = None,
        layer: int | None = None,
        run: str | None = None,
    ) -> NamedDirection:
        """Return the best direction for a concept from the latest run of the model that has a matching direction.

        Raises:
            RestrictedError: The concept is sensitive.
            NotFoundError: No run has a matching direction. The message lists alternatives.
            IntegrityError: The table of a run that may hold a match is damaged, and no other run has a match.
        """
        names = (model, concept, strategy, layer, run)
        listed_at_s, tables = self._listing
        if time.monotonic() - listed_at_s < self._listed_s:
            with contextlib.suppress(NotFoundError, IntegrityError):  # a run may have made it since
                return self._find(tables, *names)
        return self._find(self._tables(), *names)

    def _find(
        self,
        tables: Iterable[ObjectInfo],
        model: ModelRef,
        concept: str,
        strategy: str | None,
        layer: int | None,
        run: str | None,
    ) -> NamedDirection:
        of_model = (one for one in self._of(tables) if one.fits(model) and run in (None, one.run))
        seen = list[NamedDirection]()
        for one in of_model:  # older tables are not read where a later one has it
            if one.concept == concept and strategy in (None, one.strategy) and layer in (None, one.layer):
                refuse_restricted(f"directions of {concept}", [one.key])
                return one
            seen.append(one)
        parts = [f"by {strategy}" if strategy else "", "" if layer is None else f"at layer {layer}"]
        description = " ".join(["a direction of", concept, *filter(None, parts), "for model", model.id])
        raise NotFoundError(f"no run has {description}{f' ({run})' if run else ''}; {_instead(seen, concept)}")

    def _vector(self, named: NamedDirection) -> np.ndarray:
        """Return the unit vector, float32 [width].

        Raises:
            NotFoundError: The store has no such artifact, or the vector could not be computed.
        """
        rows = self._artifacts.read_table(named.key).select(["direction_id", "vector"]).to_pylist()
        vector = next((row["vector"] for row in rows if row["direction_id"] == named.construction), None)
        if vector is None:
            raise NotFoundError(f"{named} could not be computed; choose another strategy or layer")
        return np.asarray(vector, np.float32)

    def _load(self, info: ObjectInfo) -> list[NamedDirection]:
        run = info.path.split("/")[1]
        try:
            # `read_table` of pyarrow imports pandas where it is installed, for .7 s.
            table = pq.ParquetFile(pa.BufferReader(self._artifacts.store.get(info.path))).read()
            rows = [{name: row.get(name) for name in SCHEMA.names} for row in table.to_pylist()]
        except (pa.ArrowException, OSError, ValueError):
            raise IntegrityError(
                f"{info.path} is damaged; the command of run {run} writes it again, and "
                f"`poolbench-driver gc --forget {run}` removes it"
            ) from None
        return [NamedDirection(run=run, **row) for row in rows]


def table_of(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return the table of a run's directions. The directions of each concept are sorted from the best to the worst.

    They are compared by `gain_where_chosen` and then by D1. The gain itself is not used, because the highest of many
    gains is too high.
    """

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        figures = (row["gain_where_chosen"], row["d1"])
        return (row["concept"], *(float("inf") if value is None else -value for value in figures), row["layer"])

    return pa.Table.from_pylist(sorted(rows, key=order), SCHEMA)


def _instead(seen: list[NamedDirection], concept: str) -> str:
    """Return what a request may name in place of what it named."""
    cells = dict.fromkeys(f"{one.strategy} at layer {one.layer}" for one in seen if one.concept == concept)
    if cells:
        more = " ..." if len(cells) > _SHOWN else ""
        return f"there are {', '.join(list(cells)[:_SHOWN])}{more} (`ls directions` lists all)"
    if seen:
        return f"there are those of {', '.join(dict.fromkeys(one.concept for one in seen))}"
    return "a run that measures the concept in this model makes one (`poolbench-driver run`)"
