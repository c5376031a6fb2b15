"""What a request says about steering and reading along: in fields of its body, or as text in `vllm_xargs`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from poolbench.errors import InputError, UnknownModelError, unknown_name_message
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import StrengthError
from poolbench_steerer.http.steering import (
    DirectionBody,
    EditBody,
    PoolBody,
    ReadBody,
    ReadingBody,
    Readings,
    SteeringBody,
    WhereBody,
    resolve,
    resolve_readings,
)
from poolbench_steerer.plugin.bank import check_change
from poolbench_steerer.plugin.spec import Condition, Edit, Pooling, Reading, Steering
from poolbench_steerer.server.files import NamedVector
from poolbench_steerer.steered_names import NAME, NUMBER, SteeredName

STEERING, READING = "steering", "reading"
_READINGS: TypeAdapter[Any] = TypeAdapter(Readings)
_PLACE = rf"(?P<concept>{NAME})(?::(?P<layer>\d{{1,4}}))?"
_EDIT = re.compile(rf"{_PLACE}@(?P<alpha>{NUMBER})")
_READ = re.compile(_PLACE)
_Body = TypeVar("_Body", bound=DirectionBody)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Fields:
    """The fields of a request.

    Attributes:
        readings: Directions to read along, and at most one object that pools, in the order of the request.
        in_list: Whether the readings came in a list, so that the response has lists too.
    """

    steering: SteeringBody | None = None
    readings: tuple[ReadingBody | PoolBody, ...] = ()
    in_list: bool = False

    @property
    def directions(self) -> list[ReadingBody]:
        """Return the readings of directions."""
        return [body for body in self.readings if isinstance(body, ReadingBody)]

    @property
    def pooling(self) -> Pooling | None:
        """Return how texts are pooled."""
        bodies = [body for body in self.readings if isinstance(body, PoolBody)]
        return Pooling(bodies[0].layer, tuple(bodies[0].pool)) if bodies else None

    def with_directions(self, directions: Sequence[ReadingBody]) -> Self:
        """Return the fields with other readings of directions in the places of these."""
        others = iter(directions)
        readings = [next(others) if isinstance(body, ReadingBody) else body for body in self.readings]
        return replace(self, readings=tuple(readings))

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> "Fields":
        """Remove the fields from `values` and return them. Raise InputError for fields that cannot be parsed."""
        steering, reading = values.pop(STEERING, None), values.pop(READING, None)
        body = None if steering is None else _parsed(STEERING, steering, _EDIT, SteeringBody.model_validate)
        readings = [] if reading is None else _parsed(READING, reading, _READ, _READINGS.validate_python)
        in_list = isinstance(readings, list)
        return cls(body, tuple(readings) if isinstance(readings, list) else (readings,), in_list)

    def __bool__(self) -> bool:
        return self.steering is not None or bool(self.readings)


def steering_of(steered: SteeredName, vectors: Mapping[str, NamedVector]) -> SteeringBody:
    """Return how the name of a model steers.

    Raises:
        UnknownModelError: The server has no such vector.
        InputError: No strength is named, and none is recommended.
    """
    vector = vectors.get(steered.name)
    if vector is None:
        raise UnknownModelError(str(steered), [steered.model, *map(str, listed_names(steered.model, vectors))])
    strength = vector.recommended if steered.strength is None else steered.strength
    if strength is None:
        raise InputError(f"no strength is recommended for {vector.name!r}; name one: {steered}@STRENGTH")
    body = {"edits": [{"concept": steered.name, vector.unit: strength}], "positions": vector.positions}
    return _parsed(STEERING, body, _EDIT, SteeringBody.model_validate)


def listed_names(model: str, vectors: Mapping[str, NamedVector]) -> list[SteeredName]:
    """Return the names that steer a model as they are: of vectors with a layer and a recommended strength."""
    complete = [one for one in vectors.values() if None not in (one.layer, one.recommended)]
    return [SteeredName(model, one.name, one.recommended) for one in complete]


def _parsed(field: str, value: Any, short: re.Pattern[str], validated: Callable[[Any], _T]) -> _T:
    """Return the meaning of a field, which is JSON, JSON in a text, or the short form."""
    if isinstance(value, str):
        value = _of_text(field, value, short)
    try:
        return validated(value)
    except ValidationError as error:
        issue = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([field, *map(str, issue["loc"])])
        raise InputError(f"{place}: {issue['msg']}") from None


def _of_text(field: str, text: str, short: re.Pattern[str]) -> Any:
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise InputError(f"{field} is not valid JSON: {error}") from None
    matches = [short.fullmatch(part) for part in text.split("+")]
    entries = [_entry(match) for match in matches if match is not None]
    if len(entries) < len(matches):
        form = "NAME@ALPHA or NAME:LAYER@ALPHA" if field == STEERING else "NAME or NAME:LAYER"
        raise InputError(f"{field} {text[:80]!r} is neither JSON nor {form}, several with + between them")
    if field == STEERING:
        return {"edits": entries}
    return entries[0] if len(entries) == 1 else entries


def _entry(match: re.Match[str]) -> dict[str, Any]:
    kinds: dict[str, Callable[[str], Any]] = {"concept": str, "layer": int, "alpha": float}
    return {name: kinds[name](value) for name, value in match.groupdict().items() if value is not None}


@dataclass(frozen=True)
class Resolved:
    """The fields of a request, and their edits and readings for the engine, with registered vectors."""

    fields: Fields
    steering: Steering | None
    readings: tuple[Reading, ...]

    @property
    def pooling(self) -> Pooling | None:
        """Return how texts are pooled."""
        return self.fields.pooling

    def checked(self, engine: SteeringEngine) -> Self:
        """Return the fields after all checks that do not depend on the prompt, so before a stream begins.

        Raises:
            LayerError, StrengthError, UnknownVectorError: As in the engine.
        """
        places: list[Edit | Reading | Condition] = [*self.readings]
        if self.steering is not None:
            places += self.steering.edits
            places += [] if self.steering.where is None else [self.steering.where]
        for place in places:
            engine.limits.check_layer(place.layer)
            engine.bank.entry(place.vector_id)
        if self.pooling is not None:
            engine.limits.check_layer(self.pooling.layer)
        if self.steering is not None:
            check_change(self.steering, engine.bank.entry, engine.dtype)
        return self


async def resolved(engine: SteeringEngine, fields: Fields, vectors: Mapping[str, NamedVector]) -> Resolved:
    """Convert the fields of a request to edits and readings of the engine, and register their vectors.

    Raises:
        InputError: No vector has a given name, or the layer or unit of a vector is not known.
        LayerError, StrengthError, UnknownVectorError, VectorError, NoEffectError, BankFullError: As in the engine.
    """
    steering = None
    if fields.steering is not None:
        edits = await _placed(engine, fields.steering.edits, vectors)
        edits = [_with_unit(edit, vectors.get(edit.concept or "")) for edit in edits]
        where = await _where(engine, fields.steering, vectors)
        body = fields.steering.model_copy(update={"edits": edits, "where": where})
        steering = await resolve(engine, body, [edit.residual_norm or 1.0 for edit in edits])
    readings = await resolve_readings(engine, await _placed(engine, fields.directions, vectors))
    return Resolved(fields, steering, readings).checked(engine)


async def _where(engine: SteeringEngine, body: SteeringBody, vectors: Mapping[str, NamedVector]) -> WhereBody | None:
    """Return the condition with the id and layer of the vector that it names; raise InputError."""
    if body.where is None:
        return None
    read = body.where.read
    if isinstance(read, str):
        steered = SteeredName.parse(read)
        read = _parsed("steering.where.read", read if steered is None else steered.name, _READ, ReadBody.model_validate)
    return body.where.model_copy(update={"read": await _with_vector(engine, read, vectors)})


async def _placed(engine: SteeringEngine, bodies: Sequence[_Body], vectors: Mapping[str, NamedVector]) -> list[_Body]:
    """Return bodies with the ids and layers of the vectors that they name; raise InputError."""
    return [await _with_vector(engine, body, vectors) for body in bodies]


async def _with_vector(engine: SteeringEngine, body: _Body, vectors: Mapping[str, NamedVector]) -> _Body:
    if body.concept is None:
        return body
    if isinstance(body, ReadBody) and body.probe:
        raise InputError("this server has vectors, and no probes; leave probe out")
    if body.concept not in vectors:
        raise InputError(unknown_name_message("steering vector", body.concept, vectors))
    if (body.strategy, body.run) != (None, None):
        raise InputError(f"{body.concept!r} names a vector of this server, which has neither strategy nor run")
    vector = vectors[body.concept]
    layer = vector.layer if body.layer is None else body.layer
    if layer is None:
        raise InputError(f"vector {body.concept!r} has no layer in its file; give the layer in the request")
    (vector_id,) = await engine.register([vector.vector])  # another client's vectors may have evicted it
    return body.model_copy(update={"vector_id": vector_id, "layer": layer})


def _with_unit(edit: EditBody, vector: NamedVector | None) -> EditBody:
    """Return an edit with the size of strength 1; raise StrengthError if it has a strength and no such size."""
    if edit.strength is None or edit.residual_norm is not None:
        return edit
    if vector is None or vector.residual_norm is None:
        raise StrengthError(
            "a strength is in residual norms, and neither the request nor the vector's file has residual_norm; give "
            "it, or alpha in place of strength"
        )
    return edit.model_copy(update={"residual_norm": vector.residual_norm})
