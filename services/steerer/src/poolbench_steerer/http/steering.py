"""The part of a request about steering, and the steering that it means."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from poolbench.config import ModelRef, resolve_model
from poolbench.runtime.folders import requested_model
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import StrengthError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.bounds import Name, RequestBody, Vector
from poolbench_steerer.plugin.spec import MAX_ALPHA, Edit, Operation, Steering

MAX_LAYERS = 1024
MAX_EDITS = 64
PositionsBody = Literal["generated", "all", "prompt"] | Annotated[int, Field(ge=0, lt=2**31)]
Coefficient = Annotated[float, Field(ge=-MAX_ALPHA, le=MAX_ALPHA)]


class EditBody(RequestBody):
    """One edit: a vector at a layer.

    `alpha` is the coefficient itself; `strength` is in median residual norms of the layer, which are
    measured on the calibration texts unless `residual_norm` is given. `erase` needs neither: there
    `alpha` is the share of the projection that goes, 1 if it is left out.
    """

    vector: Vector | None = None
    vector_id: Name | None = None
    layer: int = Field(ge=0, lt=MAX_LAYERS)
    alpha: Coefficient | None = None
    strength: Coefficient | None = None
    residual_norm: float | None = Field(default=None, gt=0, le=MAX_ALPHA)
    operation: Operation = "add"

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.vector is None) == (self.vector_id is None):
            raise ValueError("give exactly one of vector and vector_id")
        if self.alpha is not None and self.strength is not None:
            raise ValueError("give exactly one of alpha and strength")
        if self.alpha is None and self.strength is None and self.operation != "erase":
            raise ValueError("give exactly one of alpha and strength")
        if self.strength is not None and self.operation == "erase":
            raise ValueError("erase takes alpha, the share of the projection to remove, and no strength")
        return self


class SteeringBody(RequestBody):
    """How to steer: `edits`, or the fields of a single edit in their place; and at which positions.

    `positions`: `generated` (from the last prompt position on), `all`, `prompt`, or the number of the
    first position.
    """

    edits: list[EditBody] = Field(min_length=1, max_length=MAX_EDITS)
    positions: PositionsBody = "generated"

    @model_validator(mode="before")
    @classmethod
    def _single_edit(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "edits" in value:
            return value
        edit = {name: field for name, field in value.items() if name != "positions"}
        return {"edits": [edit], **({"positions": value["positions"]} if "positions" in value else {})}


async def units_of(host: EngineHost, model: ModelRef, body: SteeringBody | None) -> list[float]:
    """Return the alpha of strength 1 for every edit; 1 where none is needed."""
    edits = body.edits if body is not None else []
    measured: list[float] = []
    if any(edit.strength is not None and edit.residual_norm is None for edit in edits):
        measured = await host.residual_norms(model)
    return [_unit(edit, measured) for edit in edits]


async def resolve(engine: SteeringEngine, body: SteeringBody | None, units: list[float]) -> Steering | None:
    """Return the steering that a body means; register its vectors. Errors come from the engine's limits and bank."""
    if body is None:
        return None
    for edit in body.edits:
        engine.limits.check_layer(edit.layer)
    alphas = [_alpha(edit, unit) for edit, unit in zip(body.edits, units, strict=True)]
    sent = [np.asarray(edit.vector, dtype=np.float32) for edit in body.edits if edit.vector is not None]
    new_ids = iter(await engine.register(sent) if sent else [])
    ids = [edit.vector_id if edit.vector_id is not None else next(new_ids) for edit in body.edits]
    edits = zip(ids, body.edits, alphas, strict=True)
    return Steering(tuple(Edit(key, edit.layer, alpha, edit.operation) for key, edit, alpha in edits), body.positions)


def _unit(edit: EditBody, measured: list[float]) -> float:
    if edit.strength is None:
        return 1.0
    if edit.residual_norm is not None:
        return edit.residual_norm
    # A layer that does not exist is refused with a better message where the steering is made.
    return measured[edit.layer] if 0 <= edit.layer < len(measured) else 1.0


def _alpha(edit: EditBody, unit: float) -> float:
    given = edit.strength if edit.strength is not None else edit.alpha
    alpha = 1.0 if given is None else given * unit  # the unit of an alpha is 1
    if not math.isfinite(alpha) or abs(alpha) > MAX_ALPHA:
        raise StrengthError(
            f"steering coefficient {alpha} at layer {edit.layer} is not finite or beyond {MAX_ALPHA:.0e}; "
            "useful ones are below the layer's median residual norm"
        )
    return alpha


def model_of(host: EngineHost, name: str | None) -> ModelRef:
    """Return the model of a request, by default the configured one; raise UnknownModelError or ModelError."""
    configured = host.config.model
    return resolve_model(configured) if name in (None, "", configured) else requested_model(name)
