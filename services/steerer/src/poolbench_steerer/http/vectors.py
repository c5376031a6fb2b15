"""Register and list steering vectors over HTTP, as JSON or safetensors."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError

from poolbench.config import ModelRef
from poolbench.contracts.bounds import MAX_WIDTH
from poolbench.contracts.wire import JSON_TYPE, OCTET_STREAM, SAFETENSORS
from poolbench.errors import InputError, TooLargeError
from poolbench.http.error_form import shortened
from poolbench.http.openapi import BINARY, errors
from poolbench_steerer.errors import MediaTypeError, VectorError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.answers import RegisteredVectors, VectorList
from poolbench_steerer.http.bounds import MAX_VECTORS, Label, Name, RequestBody, Vector
from poolbench_steerer.http.steering import model_of
from poolbench_steerer.plugin.bank import VectorBank

MAX_JSON_MIB = 32  # parsing more holds up every other request
SAFETENSORS_TYPES = (OCTET_STREAM, SAFETENSORS)
_LABEL: TypeAdapter[str] = TypeAdapter(Label)


class VectorsBody(RequestBody):
    """Vectors to register; they are used as they come, so send unit vectors."""

    vectors: list[Vector] = Field(min_length=1, max_length=MAX_VECTORS, fail_fast=True)
    labels: list[Label] | None = Field(default=None, max_length=MAX_VECTORS, fail_fast=True)
    model: Name | None = None


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {JSON_TYPE: {"schema": VectorsBody.model_json_schema()}, **dict.fromkeys(SAFETENSORS_TYPES, BINARY)},
    }
}


class VectorVerbs:
    """`POST /vectors` and `GET /vectors`."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host
        self.num_registered = 0
        self._labels: dict[str, dict[str, str]] = {}  # by model: the latest label of every id

    def add_to(self, router: APIRouter) -> None:
        """Register the verbs."""
        router.post("/vectors", response_model=RegisteredVectors, responses=errors(404, 415), openapi_extra=_BODY)(
            self.register
        )
        router.get("/vectors", response_model=VectorList, responses=errors(400, 404, 422, body=False))(self.vectors)

    async def register(self, request: Request, model: Name | None = None) -> dict[str, Any]:
        """Register vectors once; the ids stay valid until they are evicted as least recently used.

        The body is JSON, or safetensors (`application/octet-stream`, `application/vnd.safetensors`): tensors
        [width] or [vectors, width] of any float type, whose names become labels.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        limit_mib = self.host.config.max_upload_mib
        if kind in SAFETENSORS_TYPES:
            labels, arrays = await asyncio.to_thread(parse_safetensors, await read_body(request, limit_mib))
        elif kind in ("", JSON_TYPE):
            try:
                parsed = VectorsBody.model_validate_json(await read_body(request, min(limit_mib, MAX_JSON_MIB)))
            except ValidationError as error:
                raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None
            model = parsed.model or model
            labels = _labels(parsed)
            arrays = [np.asarray(vector, dtype=np.float32) for vector in parsed.vectors]
        else:
            raise MediaTypeError(f"content type {kind!r}; send {JSON_TYPE} or {' or '.join(SAFETENSORS_TYPES)}")
        ref = await model_of(self.host, model)
        ids = await self.host.run_async(ref, lambda engine: engine.register(arrays))
        self.num_registered += len(ids)
        ids_by_label = {label: key for label, key in zip(labels, ids, strict=True) if label}
        await self._remember(ref, ids_by_label)
        return {"model": ref.id, "vector_ids": ids, "labels": ids_by_label}

    async def vectors(self, model: Name | None = None) -> dict[str, Any]:
        """Return the registered vectors of a model, least recently used first; loads no model."""
        ref = await model_of(self.host, model)
        labels: Mapping[str, str] = self._labels.get(ref.id, {})
        capacity = self.host.config.bank_slots

        def view(bank: VectorBank | None) -> dict[str, Any]:
            entries = bank.entries if bank is not None else ()
            rows = [
                {
                    "vector_id": entry.vector_id,
                    "label": labels.get(entry.vector_id),
                    "norm": entry.length,
                    "in_use": entry.users > 0,
                }
                for entry in entries
            ]
            return {
                "model": ref.id,
                "width": bank.width if bank is not None else None,
                "capacity": bank.capacity if bank is not None else capacity,
                "num_in_use": sum(row["in_use"] for row in rows),
                "vectors": rows,
            }

        return await self.host.look(ref, view)

    async def _remember(self, ref: ModelRef, ids_by_label: dict[str, str]) -> None:
        labels = self._labels.setdefault(ref.id, {})
        labels.update({key: label for label, key in ids_by_label.items()})
        if len(labels) > 2 * self.host.config.bank_slots:
            registered_ids = await self.host.look(
                ref, lambda bank: {e.vector_id for e in bank.entries} if bank else set()
            )
            for key in [key for key in labels if key not in registered_ids]:
                del labels[key]


def parse_safetensors(data: bytes) -> tuple[list[str], list[np.ndarray]]:
    """Return labels (`name`, or `name/0` ... of a matrix) and float32 vectors; raise InputError or VectorError."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"the body is not safetensors: {error}") from None
    labels: list[str] = []
    arrays: list[np.ndarray] = []
    # Before any row becomes an object: a few bytes can name a shape of half a billion rows without a column.
    num_vectors = sum(_num_vectors(name, tensor) for name, tensor in tensors.items())
    if not 0 < num_vectors <= MAX_VECTORS:
        raise InputError(f"the safetensors body holds {num_vectors} vectors; send 1 to {MAX_VECTORS} at a time")
    for name, tensor in tensors.items():
        matrix = np.atleast_2d(tensor.float().numpy())
        arrays += list(matrix)
        labels += [name] if tensor.dim() == 1 else [f"{name}/{row}" for row in range(len(matrix))]
    return labels, arrays


def _num_vectors(name: str, tensor: Any) -> int:
    try:
        _LABEL.validate_python(name)
    except ValidationError as error:
        raise InputError(f"tensor name {shortened(name)}: {error.errors()[0]['msg']}") from None
    shape = tuple(tensor.shape)
    if len(shape) not in (1, 2) or not tensor.is_floating_point() or not 0 < shape[-1] <= MAX_WIDTH:
        raise VectorError(
            f"tensor {name!r} is {tensor.dtype} of shape {shape}; send floats [width] or [n, width], "
            f"with a width of 1 to {MAX_WIDTH}"
        )
    return 1 if len(shape) == 1 else shape[0]


async def read_body(request: Request, limit_mib: float) -> bytes:
    """Return the body of a request; raise TooLargeError as soon as it exceeds the limit."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_mib * 2**20:
            raise TooLargeError(
                f"the body exceeds {limit_mib:g} MiB (JSON {MAX_JSON_MIB}, safetensors "
                "POOLBENCH_STEERER_MAX_UPLOAD_MIB); send safetensors, or fewer vectors at a time"
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _labels(body: VectorsBody) -> list[str]:
    labels = body.labels if body.labels is not None else [""] * len(body.vectors)
    if len(labels) != len(body.vectors):
        raise InputError(f"{len(body.vectors)} vectors need as many labels, got {len(labels)}")
    return labels
