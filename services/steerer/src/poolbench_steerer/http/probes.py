"""Probes of runs by name: `"reading": {"concept": "contrast", "probe": true}` reads log-odds along."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field, ValidationError

from poolbench.config import ModelRef, StrictModel
from poolbench.contracts.bounds import CONCEPT_PATTERN
from poolbench.contracts.keys import digest
from poolbench.contracts.wire import SERVED_FOLDER
from poolbench.errors import CellError, InputError, IntegrityError, ModelError, NotFoundError, PoolbenchError
from poolbench.http.openapi import errors
from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http import bounds
from poolbench_steerer.http.steering import MAX_LAYERS, Coefficient, ReadingBody, model_of, resolve_readings
from poolbench_steerer.http.verbs import until_disconnect

#: Strategies whose weights cannot be had from the number of tokens, though they ask for nothing else.
_OF_THE_WHOLE_TEXT = {
    "P2_first_token": "it reads the first position of the prompt",
    "A7_random": "it draws by the id of a passage",
}


class ProbeBody(bounds.RequestBody):
    """A linear probe of pooled states h: the log-odds are w.h + offset, with w in the coordinates of the states."""

    concept: Annotated[str, Field(pattern=CONCEPT_PATTERN)]
    strategy: bounds.Name
    layer: int = Field(ge=0, lt=MAX_LAYERS)
    weights: bounds.Vector
    offset: Coefficient
    run: bounds.Name | None = None
    model: bounds.Name | None = None
    model_revision: bounds.Name | None = Field(default=None, description="refused where the model is at another one")


class ServedProbe(StrictModel):
    """A probe that readings can name."""

    model: str
    concept: str
    strategy: str
    layer: int
    run: str | None


class ServedProbes:
    """The probes in the object store, which all replicas read, also after a restart; and the verb that serves one."""

    def __init__(self, host: EngineHost, artifacts: Callable[[], Artifacts]) -> None:
        self.host = host
        self._store: Callable[[], ObjectStore] = cache(lambda: artifacts().store)

    def add_to(self, router: APIRouter) -> None:
        """Register the verb."""
        router.post("/served/probes", response_model=ServedProbe, responses=errors(404))(self.serve)

    async def serve(self, body: ProbeBody, request: Request) -> dict[str, Any]:
        """Let readings name a probe; one of the same concept, strategy and layer is replaced. Loads the model."""
        ref = model_of(self.host, body.model)
        if None not in (body.model_revision, ref.revision) and body.model_revision != ref.revision:
            raise InputError(f"the probe is of revision {body.model_revision}, and {ref.id} is at {ref.revision}")
        reading = ReadingBody(vector=body.weights, layer=body.layer)
        await until_disconnect(request, self.host.run_async(ref, lambda engine: resolve_readings(engine, [reading])))
        record = body.model_copy(update={"model": ref.id, "model_revision": ref.revision})
        path = f"{_folder(ref.id, body.concept)}{_file(body.strategy, body.layer)}"
        await asyncio.to_thread(self._store().put, path, record.model_dump_json().encode())
        return {name: getattr(record, name) for name in ServedProbe.model_fields}

    async def filled(self, model: ModelRef, bodies: Sequence[ReadingBody]) -> list[ReadingBody]:
        """Return readings with the vectors and layers of the probes that they name.

        Raises:
            NotFoundError: No such probe is served.
            ModelError: The weights of the model are not those that the probe was served for.
        """
        if not any(body.probe for body in bodies):
            return list(bodies)
        return await asyncio.to_thread(lambda: [self._filled(model, body) if body.probe else body for body in bodies])

    def _filled(self, model: ModelRef, body: ReadingBody) -> ReadingBody:
        probe = self._find(model, body)
        if probe.model_revision != model.revision:
            raise ModelError(
                f"the probe was served for revision {probe.model_revision}, and {model.id} is at {model.revision}; "
                "serve it again"
            )
        weights = np.asarray(probe.weights)
        facts = {name: getattr(probe, name) for name in ("concept", "strategy", "layer", "run")}
        return body.with_probe(weights, probe.offset, facts)

    def _find(self, model: ModelRef, body: ReadingBody) -> ProbeBody:
        """Return the probe that a reading names; of several, the one that was served last."""
        concept = body.concept or ""
        infos = list(self._store().list(_folder(model.id, concept)))
        for info in sorted(infos, key=lambda info: info.modified_s, reverse=True):
            try:
                probe = ProbeBody.model_validate_json(self._store().get(info.path))
            except ValidationError:
                raise IntegrityError(f"{info.path} is damaged; serve the probe again") from None
            if (
                body.strategy in (None, probe.strategy)
                and body.layer in (None, probe.layer)
                and (body.run in (None, probe.run))
            ):
                return probe
        by = f" by {body.strategy}" if body.strategy else ""
        at = "" if body.layer is None else f" at layer {body.layer}"
        raise NotFoundError(
            f"no probe of {bounds.shortened(concept)}{by}{at} is served for model {model.id}; "
            f"`poolbench-driver vectors serve-probe {concept}` serves that of a run"
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
        if reason := _OF_THE_WHOLE_TEXT.get(spec.base or spec.id):
            return None, f"{strategy} cannot pool new tokens alone: {reason}"
        if spec.needs:
            return None, f"{strategy} needs {', '.join(spec.needs)}, which is not known of new tokens"
        num = len(scores)
        answer = spec.weigh(TokenContext("", np.empty((0, 2), np.int64), np.zeros(num, dtype=bool)))
    except (CellError, PoolbenchError) as error:
        return None, str(error)
    if not isinstance(answer, Weights):
        return None, f"{strategy} takes each number of the states by itself, which scores do not tell"
    return float(answer.values @ (np.asarray(scores) - offset)) + offset, None


def _folder(model: str, concept: str) -> str:
    return f"{SERVED_FOLDER}/{digest(model, 12)}/probes/{concept}/"


def _file(strategy: str, layer: int) -> str:
    return f"{digest(strategy, 12)}-{layer}.json"
