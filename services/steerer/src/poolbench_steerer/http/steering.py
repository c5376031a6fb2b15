"""The parts of a request about steering and reading along, and what they mean."""

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from poolbench.config import ModelRef, resolve_model
from poolbench.errors import PoolbenchError
from poolbench.library.directions import NamedDirection, NamedDirections
from poolbench.model_folders.folders import requested_model
from poolbench.pooling.registry import STRATEGIES
from poolbench.storage import Artifacts
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.engine.stopping import Statistic, StopRule
from poolbench_steerer.errors import StrengthError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.bounds import MAX_NEW_TOKENS, Name, RequestBody, Vector
from poolbench_steerer.plugin.receipts import Receipt
from poolbench_steerer.plugin.spec import (
    MAX_ALPHA,
    MAX_READINGS,
    Condition,
    Edit,
    Operation,
    Reading,
    Steering,
)

MAX_LAYERS = 1024
MAX_POOLED = 16  # strategies of one request
MAX_EDITS = 64
PositionsBody = Literal["generated", "all", "prompt"] | Annotated[int, Field(ge=0, lt=2**31)]
Coefficient = Annotated[float, Field(ge=-MAX_ALPHA, le=MAX_ALPHA)]


class DirectionBody(RequestBody):
    """A vector at a layer, given by its numbers, by its id, or by the concept that a run measured.

    `concept` means the direction of that concept from the latest run of the model, or from `run`: of
    `strategy` and `layer` if they are given, and else the one that steered best.
    """

    vector: Vector | None = None
    vector_id: Name | None = None
    concept: Name | None = None
    strategy: Name | None = None
    run: Name | None = None
    layer: int | None = Field(default=None, ge=0, lt=MAX_LAYERS)
    _named: NamedDirection | None = PrivateAttr(default=None)

    @property
    def named(self) -> NamedDirection | None:
        """Return the direction that `concept` means, once it is found."""
        return self._named

    def with_direction(self, named: NamedDirection, vector: np.ndarray) -> Self:
        """Return the body with the vector and the layer of a direction."""
        body = self.model_copy(update={"vector": vector.tolist(), "layer": named.layer})
        body._named = named
        return body

    @property
    def at(self) -> int:
        """Return the layer, which only a concept that is not found yet lacks."""
        assert self.layer is not None
        return self.layer

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if sum(source is not None for source in (self.vector, self.vector_id, self.concept)) != 1:
            raise ValueError("give exactly one of vector, vector_id and concept")
        if self.concept is None and (self.strategy, self.run) != (None, None):
            raise ValueError("strategy and run belong to a concept")
        if self.concept is None and self.layer is None:
            raise ValueError("give the layer of the vector")
        return self


class EditBody(DirectionBody):
    """One edit along a direction.

    `alpha` is the coefficient itself; `strength` is in median residual norms of the layer, which are
    measured on the calibration texts unless `residual_norm` is given. `erase` needs neither: there
    `alpha` is the share of the projection that goes, 1 if it is left out.
    """

    alpha: Coefficient | None = None
    strength: Coefficient | None = None
    residual_norm: float | None = Field(default=None, gt=0, le=MAX_ALPHA)
    operation: Operation = "add"

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.alpha is not None and self.strength is not None:
            raise ValueError("give exactly one of alpha and strength")
        if self.alpha is None and self.strength is None and self.operation != "erase":
            raise ValueError("give exactly one of alpha and strength")
        if self.strength is not None and self.operation == "erase":
            raise ValueError("erase takes alpha, the share of the projection to remove, and no strength")
        return self


class LogOdds(NamedTuple):
    """The log-odds of a probe are `scale` times the projection of a state, plus `offset`; `probe` says which it is."""

    scale: float
    offset: float
    probe: dict[str, Any]


class ReadBody(DirectionBody):
    """A direction that is read: its score is the projection h.v / |v| + `offset` of the residual stream h."""

    offset: Coefficient = 0.0
    probe: bool = Field(default=False, description="read the log-odds of the concept's probe, which was served")
    _log_odds: LogOdds | None = PrivateAttr(default=None)

    @property
    def log_odds(self) -> LogOdds | None:
        """Return what makes log-odds of projections, once the probe is found; None for a direction."""
        return self._log_odds

    def with_probe(self, weights: list[float], log_odds: LogOdds) -> Self:
        """Return the body with the weights and the layer of a probe."""
        body = self.model_copy(update={"vector": weights, "layer": log_odds.probe["layer"]})
        body._log_odds = log_odds
        return body

    def projection(self, score: float) -> float:
        """Return the projection that has a score."""
        if self._log_odds is not None:
            return (score - self._log_odds.offset) / self._log_odds.scale
        return score - self.offset

    def facts(self) -> dict[str, Any]:
        """Return which direction or probe a name meant."""
        if self._log_odds is not None:
            return {"probe": self._log_odds.probe}
        return {} if self.named is None else {"direction": self.named.facts()}

    @model_validator(mode="after")
    def _probe_of_a_concept(self) -> Self:
        if self.probe and (self.concept is None or self.offset):
            raise ValueError("probe is for a concept, and takes no offset: the probe has one")
        return self


class BoundBody(RequestBody):
    """A bound of a score, on one side."""

    above: Coefficient | None = None
    below: Coefficient | None = None

    @property
    def bound(self) -> float:
        """Return the score of the bound."""
        bound = self.below if self.above is None else self.above
        assert bound is not None
        return bound

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("give exactly one of above and below")
        return self


class WhereBody(BoundBody):
    """A condition on each position: edits act where the score of `read` is above, or below, a bound.

    `read` is a direction or a probe, or the name of a served vector, such as `demo+contrast`. It is read
    after the block of its layer, before the edits there, so its layer is that of the first edit or an
    earlier one.
    """

    read: ReadBody | Name

    @property
    def body(self) -> ReadBody:
        """Return what is read, which only a name that is not found yet lacks."""
        assert isinstance(self.read, ReadBody)
        return self.read

    def facts(self) -> dict[str, Any]:
        """Return which direction or probe a name of a run meant."""
        return self.read.facts() if isinstance(self.read, ReadBody) else {}


class StopBody(BoundBody):
    """When a text ends: once a score is above, or below, a bound for `for_tokens` new tokens in a row.

    `score`: that of the token, or the mean or the highest of all new tokens so far.
    """

    for_tokens: int = Field(default=1, ge=1, le=MAX_NEW_TOKENS)
    score: Statistic = "token"


class ReadingBody(ReadBody):
    """A direction that is read along: every new token has the score at the position that it is sampled from.

    The residual stream is read after the block `layer` and its edits. With `echo`, the prompt's tokens
    are read too, except the first. `stop_when` ends the text.
    """

    stop_when: StopBody | None = None


def _of_states_alone(name: str) -> str:
    """Return the name of a strategy that a generating pass can compute; raise ValueError for any other."""
    try:
        needs = STRATEGIES.get(name).needs_beyond_states
    except PoolbenchError as error:
        raise ValueError(str(error)) from None
    if needs:
        raise ValueError(
            f"strategy {name} needs {', '.join(needs)}; a text that is generated has its tokens and their hidden "
            "states at the layer, and no more: use the extractor, or a strategy such as A1_mean"
        )
    return name


class PoolBody(RequestBody):
    """Pooling strategies that pool the hidden states of the prompt and those of the new tokens.

    The residual stream is read after the block `layer` and its edits. A strategy must need no more than
    tokens and these states.
    """

    layer: int = Field(ge=0, lt=MAX_LAYERS)
    pool: list[Annotated[Name, AfterValidator(_of_states_alone)]] = Field(min_length=1, max_length=MAX_POOLED)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        ids = [STRATEGIES.get(name).id for name in self.pool]
        if twice := [strategy for strategy in dict.fromkeys(ids) if ids.count(strategy) > 1]:
            raise ValueError(f"{twice[0]} stands in pool twice; name each strategy once")
        return self


class SteeringBody(RequestBody):
    """How to steer: `edits`, or the fields of a single edit in their place; and at which positions.

    `positions`: `generated` (from the last prompt position on), `all`, `prompt`, or the number of the
    first position. `where`: a condition on each of them.
    """

    edits: list[EditBody] = Field(min_length=1, max_length=MAX_EDITS)
    positions: PositionsBody = "generated"
    where: WhereBody | None = None
    _limit: dict[str, Any] | None = PrivateAttr(default=None)

    @property
    def limit(self) -> dict[str, Any] | None:
        """Return the limit of the served vector, and whether this steering is outside of it; None without a limit."""
        return self._limit

    def with_edits(self, edits: list[EditBody], limit: dict[str, Any] | None) -> Self:
        """Return the body with the edits of a served vector at a strength, and with the limit of that vector."""
        body = self.model_copy(update={"edits": edits})
        body._limit = limit
        return body

    @model_validator(mode="before")
    @classmethod
    def _single_edit(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "edits" in value:
            return value
        shared = {name: field for name, field in value.items() if name in ("positions", "where")}
        return {"edits": [{name: field for name, field in value.items() if name not in shared}], **shared}


def _one_pools(bodies: list[ReadingBody | PoolBody]) -> list[ReadingBody | PoolBody]:
    if sum(isinstance(body, PoolBody) for body in bodies) > 1:
        raise ValueError("one reading of a request may have pool; name all strategies there, at one layer")
    return bodies


def _kind(reading: Any) -> str:
    pools = "pool" in reading if isinstance(reading, dict) else isinstance(reading, PoolBody)
    return "pooling" if pools else "direction"


OneReading = Annotated[
    Annotated[ReadingBody, Tag("direction")] | Annotated[PoolBody, Tag("pooling")], Discriminator(_kind)
]
SeveralReadings = Annotated[list[OneReading], Field(min_length=1, max_length=MAX_READINGS), AfterValidator(_one_pools)]
Readings = Annotated[
    Annotated[OneReading, Tag("one")] | Annotated[SeveralReadings, Tag("several")],
    Discriminator(lambda reading: "several" if isinstance(reading, list) else "one"),
]


_Body = TypeVar("_Body", bound=DirectionBody)


class Directions:
    """The directions of the object store's runs. The store is opened by the first request that names a concept."""

    def __init__(self, artifacts: Callable[[], Artifacts]) -> None:
        self._known = cache(lambda: NamedDirections(artifacts()))

    async def filled(self, model: ModelRef, bodies: Sequence[_Body]) -> list[_Body]:
        """Return bodies with the vectors and layers that their concepts mean; raise NotFoundError, RestrictedError."""
        if all(body.concept is None for body in bodies):
            return list(bodies)
        return await asyncio.to_thread(lambda: [self._filled(model, body) for body in bodies])

    def _filled(self, model: ModelRef, body: _Body) -> _Body:
        if body.concept is None or body.vector is not None:  # a probe is found already
            return body
        directions = self._known()
        direction = directions.find(model, body.concept, body.strategy, body.layer, body.run)
        return body.with_direction(direction, directions.vector(direction))


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
        engine.limits.check_layer(edit.at)
    alphas = [_alpha(edit, unit) for edit, unit in zip(body.edits, units, strict=True)]
    condition = None
    if (where := body.where) is not None:
        engine.limits.check_layer(where.body.at)
        (key,) = await _registered(engine, [where.body])
        condition = Condition(key, where.body.at, where.body.projection(where.bound), where.above is not None)
    edits = zip(await _registered(engine, body.edits), body.edits, alphas, strict=True)
    steered = tuple(Edit(key, edit.at, alpha, edit.operation) for key, edit, alpha in edits)
    return Steering(steered, body.positions, condition)


def stop_rules(bodies: Sequence[ReadingBody]) -> tuple[StopRule, ...]:
    """Return the rules that end a text, for the scores of the engine: projections plus the offsets of readings."""
    return tuple(
        StopRule(
            number, reading.projection(stop.bound) + reading.offset, stop.above is not None, stop.for_tokens, stop.score
        )
        for number, reading in enumerate(bodies)
        if (stop := reading.stop_when) is not None
    )


async def resolve_readings(engine: SteeringEngine, bodies: Sequence[ReadingBody]) -> tuple[Reading, ...]:
    """Return the readings that bodies mean; register their vectors. Errors as in `resolve`."""
    for body in bodies:
        engine.limits.check_layer(body.at)
    ids = await _registered(engine, bodies)
    return tuple(Reading(key, body.at, body.offset) for key, body in zip(ids, bodies, strict=True))


async def _registered(engine: SteeringEngine, bodies: Sequence[DirectionBody]) -> list[str]:
    """Return the ids of all vectors; those given by their numbers are registered."""
    sent = [np.asarray(body.vector, dtype=np.float32) for body in bodies if body.vector is not None]
    new_ids = iter(await engine.register(sent) if sent else [])
    return [body.vector_id if body.vector_id is not None else next(new_ids) for body in bodies]


def _unit(edit: EditBody, measured: list[float]) -> float:
    if edit.strength is None:
        return 1.0
    if edit.residual_norm is not None:
        return edit.residual_norm
    # A layer that does not exist is refused with a better message where the steering is made.
    return measured[edit.at] if 0 <= edit.at < len(measured) else 1.0


def _alpha(edit: EditBody, unit: float) -> float:
    size = edit.strength if edit.strength is not None else edit.alpha
    alpha = 1.0 if size is None else size * unit  # the unit of an alpha is 1
    if not math.isfinite(alpha) or abs(alpha) > MAX_ALPHA:
        raise StrengthError(
            f"steering coefficient {alpha} at layer {edit.at} is not finite or beyond {MAX_ALPHA:.0e}; "
            "useful ones are below the layer's median residual norm"
        )
    return alpha


def receipt_body(receipt: Receipt | None, body: SteeringBody | None) -> dict[str, Any] | None:
    """Return a receipt as JSON, with the directions that concepts meant, and the limit of a served vector.

    Return None for an unsteered text.
    """
    if receipt is None:
        return None
    sent, edits = receipt.to_json(), body.edits if body is not None else []
    for edit_receipt, edit in zip(sent["edits"], edits, strict=False):
        if edit.named is not None:
            edit_receipt["direction"] = edit.named.facts()
    if body is not None and body.limit is not None:
        sent["limit"] = body.limit
    if body is not None and body.where is not None:
        sent["where"] |= body.where.facts()
    return sent


async def model_of(host: EngineHost, name: str | None) -> ModelRef:
    """Return the model of a request, by default the configured one; raise UnknownModelError or ModelError.

    The weights of a folder are hashed in a thread: that takes seconds, and streams go on.
    """
    configured = host.config.model
    resolved = resolve_model if name in (None, "", configured) else requested_model
    return await asyncio.to_thread(resolved, name or configured)
