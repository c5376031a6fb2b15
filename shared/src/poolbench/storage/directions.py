"""The directions of runs by name, so that ad-hoc requests steer with what a run has made.

A run that has ended leaves the table `directions` (columns: `SCHEMA`) among its files in the object store, for each
concept the best direction first. A name means the latest run of the model that has it.
"""

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
_SHOWN = 8  # cells in a message
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "model_revision", "concept", "strategy")),
        ("layer", pa.int32()),
        *((name, pa.string()) for name in ("construction", "key")),
        *((name, pa.float64()) for name in ("d1", "gain", "fluent_strength")),
    ]
)


@dataclass(frozen=True)
class NamedDirection:
    """A direction that requests can name.

    Attributes:
        construction: Method that made the vector.
        key: Of the artifact that holds it.
        d1: AUROC of the strategy at this layer; None where the run has no value.
        gain: `d2.best_gain` of the direction; None where the run has no value.
        fluent_strength: Highest strength in residual norms at which the run's texts were fluent; None where it did
            not steer, or not in this unit.
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
    fluent_strength: float | None

    def __str__(self) -> str:
        return f"{self.concept} by {self.strategy} at layer {self.layer}, of run {self.run}"

    def fits(self, model: ModelRef) -> bool:
        """Return whether it was made in this model, and with these weights where the revision is known beforehand."""
        return self.model == model.id and model.revision in (None, self.model_revision)

    def facts(self) -> dict[str, Any]:
        """Return what identifies it to a reader."""
        names = ("run", "concept", "strategy", "layer", "construction", "fluent_strength")
        return {name: getattr(self, name) for name in names}


class NamedDirections:
    """The directions of an object store, with the last tables and vectors cached; several threads may use it."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._read = lru_cache(32)(self._load)
        self.vector = lru_cache(64)(self._vector)

    def all(self) -> Iterator[NamedDirection]:
        """Yield the directions of all runs: the latest run first, the best direction of each concept first."""
        suffix = f"/{RUN_FILES}{TABLE}.parquet"
        tables = [info for info in self._artifacts.store.list(f"{RUNS_FOLDER}/") if info.path.endswith(suffix)]
        for info in sorted(tables, key=lambda info: info.modified_s, reverse=True):
            yield from self._read(info)

    def find(
        self,
        model: ModelRef,
        concept: str,
        strategy: str | None = None,
        layer: int | None = None,
        run: str | None = None,
    ) -> NamedDirection:
        """Return the best direction of the latest run of a model that has one of this name.

        Raises:
            RestrictedError: The concept is sensitive.
            NotFoundError: No run has made one; it says what there is.
        """
        of_model = (one for one in self.all() if one.fits(model) and run in (None, one.run))
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
    """Return the table of a run's directions, for each concept the best first: by gain, then by D1."""

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        figures = (row["gain"], row["d1"])
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
