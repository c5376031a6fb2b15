"""Vectors over HTTP: what vLLM's own server can steer with, and more of it while it runs."""

from typing import Any

from fastapi import FastAPI, HTTPException, Request

from poolbench.errors import PoolbenchError
from poolbench.settings import SteererSettings
from poolbench_steerer.http.vectors import read_body
from poolbench_steerer.plugin.bank import vector_id
from poolbench_steerer.server.fields import listed_names
from poolbench_steerer.server.files import named, vectors_in
from poolbench_steerer.server.texts import ServedEngine

#: Below `/v1`, where vLLM checks its API key.
PATH = "/v1/steering/vectors"


def add_vectors(app: FastAPI, engine: ServedEngine) -> None:
    """Add `GET` and `POST` of `/v1/steering/vectors` to vLLM's app."""
    limit_mib = SteererSettings.load().max_upload_mib

    async def listed() -> dict[str, Any]:
        """List the vectors that requests can name."""
        return {
            "vectors": [
                {
                    "name": vector.name,
                    "vector_id": vector_id(vector.vector),
                    "layer": vector.layer,
                    "residual_norm": vector.residual_norm,
                }
                for vector in engine.vectors.values()
            ]
        }

    async def register(request: Request) -> dict[str, Any]:
        """Register the tensors of a safetensors body under their names; one of the same name is replaced."""
        try:
            vectors = vectors_in(await read_body(request, limit_mib))
            await engine.register_named([named(vector, vector.name) for vector in vectors])
        except PoolbenchError as error:
            raise HTTPException(error.http_status, str(error)) from error
        return await listed()

    app.add_api_route(PATH, listed, methods=["GET"])
    app.add_api_route(PATH, register, methods=["POST"])


def list_steered(models: Any, engine: ServedEngine) -> None:
    """Let vLLM's `/v1/models` list the model with each vector whose layer and strength are known.

    Args:
        models: vLLM's `OpenAIServingModels`.
    """
    unsteered = models.show_available_models

    async def with_steered() -> Any:
        listed = await unsteered()
        names = listed_names(engine.names[0], engine.vectors)
        listed.data += [listed.data[0].model_copy(update={"id": str(name), "parent": name.model}) for name in names]
        return listed

    models.show_available_models = with_steered
