"""Probes of runs by name: `"reading": {"concept": "contrast", "probe": true}` reads log-odds along."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field

from poolbench.config import ModelRef
from poolbench.contracts.bounds import CONCEPT_PATTERN
from poolbench.contracts.keys import digest
from poolbench.contracts.wire import SERVED_FOLDER
from poolbench.errors import NotFoundError, PoolbenchError
from poolbench.http.error_form import shortened
from poolbench.http.openapi import errors
from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http import bounds
from poolbench_steerer.http.answers import ReadProbe
from poolbench_steerer.http.leaving import until_disconnect
from poolbench_steerer.http.served import ServedBody, ServedRecords
from poolbench_steerer.http.steering import (
    MAX_LAYERS,
    Coefficient,
    LogOdds,
    ReadBody,
    ReadingBody,
    model_of,
    resolve_readings,
)

#: Strategy that reads the first position of the prompt, though it asks for nothing else.
_OF_THE_PROMPT = "P2_first_token"


_Body = TypeVar("_Body", bound=ReadBody)


class ProbeBody(ServedBody):
    """A linear probe of pooled states h: the log-odds are w.h + offset, with w in the coordinates of the states."""

    concept: Annotated[str, Field(max_length=40, pattern=CONCEPT_PATTERN)]
    strategy: bounds.Name
    layer: int = Field(ge=0, lt=MAX_LAYERS)
    weights: bounds.Vector
    offset: Coefficient
    run: bounds.Name | None = None

    def facts(self) -> dict[str, Any]:
        """Return the facts that identify the probe to a reader."""
        return {name: getattr(self, name) for name in ReadProbe.model_fields}


class ServedProbes:
    """The probes that readings name, and the verb that serves one."""

    def __init__(self, host: EngineHost, records: ServedRecords) -> None:
        self.host = host
        self._records = records

    def add_to(self, router: APIRouter) -> None:
        """Register the verb."""
        router.post("/served/probes", response_model=ReadProbe, responses=errors(404))(self.serve)

    async def serve(self, body: ProbeBody, request: Request) -> dict[str, Any]:
        """Let readings name a probe; one of the same concept, strategy and layer is replaced. Loads the model."""
        ref = await model_of(self.host, body.model)
        record, reading = body.of(ref), ReadingBody(vector=body.weights, layer=body.layer)
        await until_disconnect(request, self.host.run_async(ref, lambda engine: resolve_readings(engine, [reading])))
        file = digest([body.strategy, body.layer], 12)
        await self._records.keep(f"{_folder(ref.id, body.concept)}{file}.json", record)
        return record.facts()

    async def filled(self, model: ModelRef, bodies: Sequence[_Body]) -> list[_Body]:
        """Return readings with the vectors and layers of the probes that they name.

        Raises:
            NotFoundError: No such probe is served.
            ModelError: The weights of the model are not those that the probe was served for.
        """
        return [await asyncio.to_thread(self._filled, model, body) if body.probe else body for body in bodies]

    def _filled(self, model: ModelRef, body: _Body) -> _Body:
        """Return a reading with the probe that it names; of several, the one that was served last."""
        infos = list(self._records.store().list(_folder(model.id, body.concept or "")))
        for info in sorted(infos, key=lambda info: info.modified_s, reverse=True):
            probe = self._records.read(info.path, ProbeBody)
            parts = {"strategy": body.strategy, "layer": body.layer, "run": body.run}
            if all(part in (None, getattr(probe, name)) for name, part in parts.items()):
                scale = float(np.linalg.norm(probe.require(model).weights))
                return body.with_probe(probe.weights, LogOdds(scale, probe.offset, probe.facts()))
        raise NotFoundError(
            f"no such probe of {shortened(body.concept)} is served for model {model.id}; "
            f"`poolbench-driver vectors serve-probe {body.concept}` serves that of a run"
        )


def pooled_score(strategy: str, scores: Sequence[float], offset: float) -> tuple[float | None, str | None]:
    """Return the score of the pooled state of new tokens, or None and why it cannot be had from their scores.

    Weights a_t of a strategy give w . sum(a_t h_t) + b = sum(a_t (s_t - b)) + b, where s_t = w.h_t + b.

    Args:
        scores: s_t of each token.
        offset: b.
    """
    try:
        spec = STRATEGIES.get(strategy)
        if (spec.base or spec.id) == _OF_THE_PROMPT:
            return None, f"{strategy} cannot pool new tokens alone: it reads the first position of the prompt"
        if needs := spec.needs or spec.needs_beyond_states:
            return None, f"{strategy} needs {', '.join(needs)}, which is not known of new tokens"
        answer = spec.weigh(TokenContext("", np.empty((0, 2), np.int64), np.zeros(len(scores), dtype=bool)))
    except PoolbenchError as error:
        return None, str(error)
    if not isinstance(answer, Weights):
        return None, f"{strategy} takes each number of the states by itself, which scores do not tell"
    return float(answer.values @ (np.asarray(scores) - offset)) + offset, None


def _folder(model: str, concept: str) -> str:
    return f"{SERVED_FOLDER}/probes/{digest(model, 12)}/{concept}/"
