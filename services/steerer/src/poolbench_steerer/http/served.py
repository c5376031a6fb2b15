"""Vectors under the names of models: a request for the model `demo+contrast@.6` is steered by `contrast`."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError

from poolbench.config import ModelRef, StrictModel
from poolbench.contracts.keys import digest
from poolbench.contracts.wire import SERVED_FOLDER
from poolbench.errors import (
    ConfigError,
    InputError,
    IntegrityError,
    ModelError,
    NotFoundError,
    UnknownModelError,
    UnknownNameError,
)
from poolbench.http.openapi import errors
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http import bounds
from poolbench_steerer.http.answers import Limit
from poolbench_steerer.http.leaving import until_disconnect
from poolbench_steerer.http.steering import Coefficient, EditBody, ReadBody, SteeringBody, model_of, resolve, units_of
from poolbench_steerer.steered_names import SteeredName

MAX_SERVED = 256  # every list of models reads them all
_LOG = logging.getLogger(__name__)


class ServedBody(bounds.RequestBody):
    """The record of a served name: its model, and the weights that it was made for."""

    model: bounds.Name | None = None
    model_revision: bounds.Name | None = Field(default=None, description="refused where the model is at another one")

    def of(self, ref: ModelRef) -> Self:
        """Return the record for a model as it is. Raise InputError if it was made for other weights."""
        if None not in (self.model_revision, ref.revision) and self.model_revision != ref.revision:
            raise InputError(f"it is of revision {self.model_revision}, and {ref.id} is at {ref.revision}")
        return self.model_copy(update={"model": ref.id, "model_revision": ref.revision})

    def require(self, ref: ModelRef) -> Self:
        """Return the record. Raise ModelError if the weights of its model have changed since it was served."""
        if self.model_revision != ref.revision:
            raise ModelError(
                f"it was served for revision {self.model_revision}, and {ref.id} is at {ref.revision}; serve it again"
            )
        return self


class VectorBody(ServedBody):
    """How a name steers: `steering`, with the numbers of its vectors, times the strength of the name."""

    name: Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
    steering: SteeringBody
    strength: Coefficient = Field(default=1.0, description="of a name without a strength")
    limit: Limit | None = Field(default=None, description="of strengths; receipts have it")

    def at(self, strength: float) -> SteeringBody:
        """Return how to steer at a strength."""
        edits = []
        for edit in self.steering.edits:
            size, value = ("alpha", edit.alpha) if edit.strength is None else ("strength", edit.strength)
            edits.append(edit.model_copy(update={size: strength * (1.0 if value is None else value)}))
        return self.steering.with_edits(edits, None if self.limit is None else self.limit.facts(strength))

    def facts(self) -> dict[str, Any]:
        """Return what a client sees of it."""
        model, layers = self.model or "", sorted({edit.at for edit in self.steering.edits})
        name = SteeredName(model, self.name, self.strength)
        return {"id": str(name), "model": model, "name": self.name, "strength": self.strength, "layers": layers}


class ServedVector(StrictModel):
    """A name that steers a model."""

    id: str = Field(description="what requests send as their model; another strength may stand behind the @")
    model: str
    name: str
    strength: float
    layers: list[int]


class ServedList(StrictModel):
    """All names that steer."""

    served: list[ServedVector]


class MeantModel(NamedTuple):
    """What the model of a request means; a model alone does not steer. `id` is the full name, for the response."""

    ref: ModelRef
    steering: SteeringBody | None
    id: str


_Record = TypeVar("_Record", bound=ServedBody)


class ServedRecords:
    """The records of served names in the object store: all replicas read them, also after a restart."""

    def __init__(self, artifacts: Callable[[], Artifacts]) -> None:
        self.store: Callable[[], ObjectStore] = cache(lambda: artifacts().store)

    def read(self, path: str, kind: type[_Record]) -> _Record:
        """Return a record; raise NotFoundError or IntegrityError."""
        try:
            return kind.model_validate_json(self.store().get(path))
        except ValidationError:
            raise IntegrityError(f"{path} is damaged; serve it again, or remove it") from None

    async def keep(self, path: str, record: ServedBody) -> None:
        """Write a record in place of an earlier one; raise InputError if there are too many."""

        def write() -> None:
            folder = path.rpartition("/")[0]
            paths = {info.path for info in self.store().list(f"{folder}/")}
            if len(paths) >= MAX_SERVED and path not in paths:
                raise InputError(f"{MAX_SERVED} are served already; remove one (`poolbench-driver vectors unserve`)")
            self.store().put(path, record.model_dump_json(exclude_none=True).encode())

        await asyncio.to_thread(write)

    async def remove(self, path: str) -> bool:
        """Remove a record; return whether there was one."""

        def delete() -> bool:
            if not self.store().exists(path):
                return False
            self.store().delete(path)
            return True

        return await asyncio.to_thread(delete)


class ServedVectors:
    """The names of steered models, and the verbs for them."""

    def __init__(self, host: EngineHost, records: ServedRecords) -> None:
        self.host = host
        self._records = records

    def add_to(self, router: APIRouter) -> None:
        """Register the verbs."""
        router.post("/served", response_model=ServedVector, responses=errors(404))(self.serve)
        router.get("/served", response_model=ServedList, responses=errors(body=False))(self.served)
        router.delete("/served", response_model=ServedList, responses=errors(404, 422, body=False))(self.remove)

    async def serve(self, body: VectorBody, request: Request) -> dict[str, Any]:
        """Let requests name vectors behind the model's name; those of the same name are replaced. Loads the model."""
        ref = await model_of(self.host, body.model)
        if any(isinstance(one, str) or one.vector is None for one in _directions(body.steering)):
            raise InputError("a name that outlives this engine needs the numbers of its vectors: give `vector`")
        record, steering = body.of(ref), body.at(body.strength)
        units = await units_of(self.host, ref, steering)
        # Refuses what does not fit the model, before a request meets it.
        await until_disconnect(request, self.host.run_async(ref, lambda engine: resolve(engine, steering, units)))
        await self._records.keep(_path(ref.id, body.name), record)
        return record.facts()

    async def served(self) -> dict[str, Any]:
        """Return the names that steer."""
        return {"served": await asyncio.to_thread(self.facts)}

    async def remove(self, id: bounds.Name) -> dict[str, Any]:
        """Remove a name, with or without a strength, and return the others. Requests under way are finished."""
        name = SteeredName.parse(id)
        if name is None or not await self._records.remove(_path(name.model, name.name)):
            names = [facts["id"] for facts in (await self.served())["served"]]
            raise UnknownNameError("served vector", id, names or ["none"])
        return await self.served()

    def facts(self) -> list[dict[str, Any]]:
        """Return what is served, by id; what cannot be read is left out with a line in the log."""
        return sorted((record.facts() for record in self._readable()), key=lambda facts: facts["id"])

    def _readable(self) -> Iterator[VectorBody]:
        for info in self._records.store().list(f"{SERVED_FOLDER}/vectors/"):
            try:
                yield self._records.read(info.path, VectorBody)
            except (NotFoundError, IntegrityError) as error:  # the first: removed since it was listed
                _LOG.warning("%s", error)

    async def reading(self, ref: ModelRef, text: str) -> ReadBody:
        """Return the vector that a name means for a model, with or without the name of the model, to be read.

        Raises:
            InputError: The vector is served for another model, or steers at several layers.
            UnknownNameError: No such vector is served.
            ModelError: The weights of the model are not those that the vector was served for.
        """
        name = SteeredName.parse(text) or SteeredName(ref.id, text)
        if (model := await model_of(self.host, name.model)).id != ref.id:
            raise InputError(f"{text} is a vector of {model.id}, and the text is of {ref.id}")
        try:
            record = await asyncio.to_thread(self._records.read, _path(ref.id, name.name), VectorBody)
        except NotFoundError:
            names = [facts["id"] for facts in await asyncio.to_thread(self.facts) if facts["model"] == ref.id]
            raise UnknownNameError("served vector", text, names or ["none"]) from None
        edits = record.require(ref).steering.edits
        if len(edits) > 1:
            raise InputError(f"{text} has several vectors; read one of them, as {{'vector': ..., 'layer': ...}}")
        return ReadBody(vector=edits[0].vector, layer=edits[0].layer)

    async def meaning(self, text: str | None) -> MeantModel:
        """Return the model that a request names, and how it is steered.

        Raises:
            UnknownModelError: It is neither a model nor a name that is served.
            ModelError: The model cannot be named, or its weights are not those that the name was served for.
        """
        try:
            ref = await model_of(self.host, text)
            return MeantModel(ref, None, ref.id)
        except ConfigError:
            name = SteeredName.parse(text or "")
            if name is None:
                raise
        ref = await model_of(self.host, name.model)
        try:
            record = await asyncio.to_thread(self._records.read, _path(ref.id, name.name), VectorBody)
        except NotFoundError:
            names = [ref.id, *(facts["id"] for facts in await asyncio.to_thread(self.facts))]
            raise UnknownModelError(str(name), names) from None
        strength = record.require(ref).strength if name.strength is None else name.strength
        return MeantModel(ref, record.require(ref).at(strength), str(SteeredName(ref.id, name.name, strength)))


def _directions(steering: SteeringBody) -> list[EditBody | ReadBody | str]:
    return [*steering.edits, *([steering.where.read] if steering.where is not None else ())]


def _path(model: str, name: str) -> str:
    return f"{SERVED_FOLDER}/vectors/{digest([model, name], 12)}.json"
