"""What the names in a request mean: concepts of runs, served probes and served vectors."""

from collections.abc import Sequence
from typing import TypeVar

from poolbench.config import ModelRef
from poolbench_steerer.http.probes import ServedProbes
from poolbench_steerer.http.served import ServedVectors
from poolbench_steerer.http.steering import Directions, ReadBody, SteeringBody, WhereBody

_Body = TypeVar("_Body", bound=ReadBody)


class Named:
    """Finds the vectors and layers that requests name.

    Raises:
        NotFoundError: Nothing has the name.
        RestrictedError: A concept is sensitive.
        ModelError: The weights of the model are not those that a probe or vector was served for.
    """

    def __init__(self, directions: Directions, served: ServedVectors, probes: ServedProbes) -> None:
        self._directions, self._served, self._probes = directions, served, probes

    async def steering(self, model: ModelRef, body: SteeringBody | None) -> SteeringBody | None:
        """Return how to steer, with the vectors and layers of its edits and its condition."""
        if body is None:
            return None
        edits = await self._directions.filled(model, body.edits)
        return body.model_copy(update={"edits": edits, "where": body.where and await self._where(model, body.where)})

    async def readings(self, model: ModelRef, bodies: Sequence[_Body]) -> list[_Body]:
        """Return readings with their vectors and layers."""
        return await self._directions.filled(model, await self._probes.filled(model, bodies))

    async def _where(self, model: ModelRef, where: WhereBody) -> WhereBody:
        if isinstance(where.read, str):
            read = await self._served.reading(model, where.read)
        else:
            (read,) = await self.readings(model, [where.read])
        return where.model_copy(update={"read": read})
