"""Vectors under the names of models: a request for the model `demo+contrast@.6` is steered by `contrast`."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError

from poolbench.config import ModelRef, StrictModel
from poolbench.contracts.keys import digest
from poolbench.contracts.wire import SERVED_FOLDER
from poolbench.errors import ConfigError, InputError, IntegrityError, ModelError, NotFoundError, UnknownModelError
from poolbench.http.openapi import errors
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http import bounds
from poolbench_steerer.http.steering import Coefficient, SteeringBody, model_of, resolve, units_of
from poolbench_steerer.http.verbs import until_disconnect
from poolbench_steerer.steered_names import SteeredName

MAX_SERVED = 256  # every list of models reads them all
_LOG = logging.getLogger(__name__)
ServedName = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]


class ServedBody(bounds.RequestBody):
    """How a name steers: `steering` at strength 1, with the numbers of its vectors, times the strength of the name."""

    name: ServedName
    steering: SteeringBody
    strength: Coefficient = Field(default=1.0, description="of a name without a strength")
    model: bounds.Name | None = None
    model_revision: bounds.Name | None = Field(default=None, description="refused where the model is at another one")

    def at(self, strength: float) -> SteeringBody:
        """Return how to steer at a strength."""
        edits = []
        for edit in self.steering.edits:
            size = "alpha" if edit.strength is None else "strength"
            value = getattr(edit, size)
            edits.append(edit.model_copy(update={size: strength * (1.0 if value is None else value)}))
        return self.steering.model_copy(update={"edits": edits})


class ServedVector(StrictModel):
    """A name that steers a model."""

    id: str = Field(description="what requests send as their model; another strength may stand behind the @")
    model: str
    name: str
    strength: float
    layers: list[int]


class RemovedName(StrictModel):
    """A name that steers no longer."""

    id: str


class ServedList(StrictModel):
    """All of them, and at most how many there may be."""

    served: list[ServedVector]
    capacity: int


@dataclass(frozen=True)
class MeantModel:
    """What the model of a request means.

    Attributes:
        steering: How the name steers; None for a model alone.
        id: The full name, for the response.
    """

    ref: ModelRef
    steering: SteeringBody | None
    id: str


class ServedVectors:
    """The names in the object store, which all replicas read, also after a restart; and the verbs for them."""

    def __init__(self, host: EngineHost, artifacts: Callable[[], Artifacts]) -> None:
        self.host = host
        self._store: Callable[[], ObjectStore] = cache(lambda: artifacts().store)
        self._parsed = lru_cache(64)(ServedBody.model_validate_json)  # by content, so that no change is missed

    def add_to(self, router: APIRouter) -> None:
        """Register the verbs."""
        router.post("/served", response_model=ServedVector, responses=errors(404))(self.serve)
        router.get("/served", response_model=ServedList, responses=errors(body=False))(self.served)
        router.delete("/served", response_model=RemovedName, responses=errors(400, 404, 422, body=False))(self.remove)

    async def serve(self, body: ServedBody, request: Request) -> dict[str, Any]:
        """Let requests name vectors behind the model's name; those of the same name are replaced. Loads the model."""
        ref = model_of(self.host, body.model)
        if any(edit.vector is None for edit in body.steering.edits):
            raise InputError("a name that outlives this engine needs the numbers of its vectors: give `vector`")
        if None not in (body.model_revision, ref.revision) and body.model_revision != ref.revision:
            raise InputError(
                f"the vector is of revision {body.model_revision}, and {ref.id} is at {ref.revision}; leave out "
                "model_revision to take it where the width fits"
            )
        steering = body.at(body.strength)
        units = await units_of(self.host, ref, steering)
        # Refuses what does not fit the model, before a request meets it.
        await until_disconnect(request, self.host.run_async(ref, lambda engine: resolve(engine, steering, units)))
        record = body.model_copy(update={"model": ref.id, "model_revision": ref.revision})
        await asyncio.to_thread(self._write, record)
        return _facts(record)

    async def served(self) -> dict[str, Any]:
        """Return the names that steer."""
        return {"served": await asyncio.to_thread(self.facts), "capacity": MAX_SERVED}

    async def remove(self, id: bounds.Name) -> dict[str, Any]:
        """Remove a name, with or without a strength. Requests under way are finished."""
        steered = SteeredName.parse(id)
        if steered is None:
            raise InputError(f"{bounds.shortened(id)} is not of the form MODEL+NAME")
        await asyncio.to_thread(self._delete, steered)
        return {"id": f"{steered.model}+{steered.name}"}

    def facts(self) -> list[dict[str, Any]]:
        """Return what is served, by id; what cannot be read is left out with a line in the log."""
        return sorted(map(_facts, self._records()), key=lambda facts: facts["id"])

    async def meaning(self, name: str | None) -> MeantModel:
        """Return what the model of a request means.

        Raises:
            UnknownModelError: It is neither a model nor a name that is served.
            ModelError: The model cannot be named, or its weights are not those that the name was served for.
        """
        try:
            ref = model_of(self.host, name)
            return MeantModel(ref, None, ref.id)
        except ConfigError:
            steered = SteeredName.parse(name or "")
            if steered is None:
                raise
        ref = model_of(self.host, steered.model)
        steered = SteeredName(ref.id, steered.name, steered.strength)
        record = await asyncio.to_thread(self._known, steered)
        if record.model_revision != ref.revision:
            raise ModelError(
                f"{steered} was served for revision {record.model_revision}, and {ref.id} is at {ref.revision}; "
                "serve its vector again"
            )
        strength = record.strength if steered.strength is None else steered.strength
        return MeantModel(ref, record.at(strength), str(SteeredName(ref.id, steered.name, strength)))

    def _known(self, steered: SteeredName) -> ServedBody:
        path = _path(steered.model, steered.name)
        try:
            return self._parsed(self._store().get(path))
        except NotFoundError:
            raise self._unknown(steered) from None
        except ValidationError:
            raise IntegrityError(f"{path} is damaged; serve the vector of {steered} again") from None

    def _delete(self, steered: SteeredName) -> None:
        path = _path(steered.model, steered.name)
        if not self._store().exists(path):
            raise self._unknown(steered)
        self._store().delete(path)

    def _unknown(self, steered: SteeredName) -> UnknownModelError:
        return UnknownModelError(str(steered), [steered.model, *(facts["id"] for facts in self.facts())])

    def _records(self) -> Iterator[ServedBody]:
        for info in self._store().list(f"{SERVED_FOLDER}/"):
            if "/probes/" in info.path:
                continue
            try:
                yield self._parsed(self._store().get(info.path))
            except NotFoundError:  # removed since it was listed
                continue
            except ValidationError:
                _LOG.warning("%s is damaged; serve its vector again, or remove it", info.path)

    def _write(self, record: ServedBody) -> None:
        path = _path(record.model or "", record.name)
        paths = {info.path for info in self._store().list(f"{SERVED_FOLDER}/") if "/probes/" not in info.path}
        if len(paths) >= MAX_SERVED and path not in paths:
            raise InputError(f"{MAX_SERVED} names are served already; remove one (`poolbench-driver vectors unserve`)")
        self._store().put(path, record.model_dump_json(exclude_none=True).encode())


def _facts(record: ServedBody) -> dict[str, Any]:
    model = record.model or ""
    return {
        "id": str(SteeredName(model, record.name, record.strength)),
        "model": model,
        "name": record.name,
        "strength": record.strength,
        "layers": sorted({edit.at for edit in record.steering.edits}),
    }


def _path(model: str, name: str) -> str:
    return f"{SERVED_FOLDER}/{digest(model, 12)}/{name}.json"
