"""Vectors over HTTP: what vLLM's own server can steer with, and more of it while it runs."""

from collections.abc import Sequence
from typing import Any, Self

from fastapi import FastAPI, HTTPException, Request

from poolbench.config import ModelRef
from poolbench.errors import PoolbenchError
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.engine.launch import device
from poolbench_steerer.http.vectors import read_body
from poolbench_steerer.plugin.bank import VectorBank, vector_id
from poolbench_steerer.server.fields import listed_names
from poolbench_steerer.server.files import NamedVector, check_vectors, named, vectors_in

#: Below `/v1`, where vLLM checks its API key.
PATH = "/v1/steering/vectors"


class FileVectors:
    """The engine of vLLM's own server, and the vectors that its requests can name.

    Attributes:
        names: Names of the model in requests.
    """

    def __init__(self, engine: SteeringEngine, names: Sequence[str]) -> None:
        self.engine, self.names = engine, tuple(names)
        self.vectors: dict[str, NamedVector] = {}

    @classmethod
    async def around(cls, llm: Any, names: Sequence[str]) -> Self:
        """Wrap an engine that vLLM's server has started."""
        info = (await llm.collective_rpc("steering_info"))[0]
        settings = SteererSettings.load()
        engine = SteeringEngine(
            ModelRef(names[0], names[0]),
            llm,
            info,
            VectorBank(info["width"], info["num_slots"]),
            0.0,
            num_seqs=llm.vllm_config.scheduler_config.max_num_seqs,
            on_cpu=device(settings) == "cpu",
        )
        return cls(engine, names)

    @property
    def marks(self) -> list[bytes]:
        """Return byte strings that occur (unless escaped) in a body that names the model with a vector."""
        return [f"{name}+".encode() for name in self.names]

    async def register(self, vectors: Sequence[NamedVector]) -> None:
        """Let requests name the given vectors. A vector of an existing name is replaced. Errors as in the engine."""
        check_vectors(vectors, self.engine.bank.width, self.engine.num_layers)
        await self.engine.register([vector.vector for vector in vectors])
        self.vectors.update((vector.name, vector) for vector in vectors)


def add_vectors(app: FastAPI, served: FileVectors) -> None:
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
                for vector in served.vectors.values()
            ]
        }

    async def register(request: Request) -> dict[str, Any]:
        """Register the tensors of a safetensors body under their names; one of the same name is replaced."""
        try:
            vectors = vectors_in(await read_body(request, limit_mib))
            await served.register([named(vector, vector.name) for vector in vectors])
        except PoolbenchError as error:
            raise HTTPException(error.http_status, str(error)) from error
        return await listed()

    app.add_api_route(PATH, listed, methods=["GET"])
    app.add_api_route(PATH, register, methods=["POST"])


def list_steered(models: Any, served: FileVectors) -> None:
    """Let vLLM's `/v1/models` list the model with each vector whose layer and strength are known.

    Args:
        models: vLLM's `OpenAIServingModels`.
    """
    unsteered = models.show_available_models

    async def with_steered() -> Any:
        listed = await unsteered()
        names = listed_names(served.names[0], served.vectors)
        listed.data += [listed.data[0].model_copy(update={"id": str(name), "parent": name.model}) for name in names]
        return listed

    models.show_available_models = with_steered
