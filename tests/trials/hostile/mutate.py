"""Spoiling a valid body: hostile values at places that the body or the service's own schema names."""

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

from tests.trials.hostile.values import hostile

Path = tuple[str | int, ...]
_DEPTH = 5


def places(body: Any, path: Path = ()) -> Iterator[Path]:
    """Every place of a body; of long lists the first entry."""
    yield path
    if isinstance(body, dict):
        for name, value in body.items():
            yield from places(value, (*path, name))
    elif isinstance(body, list) and body:
        yield from places(body[0], (*path, 0))


def schema_places(schema: Mapping[str, Any], names: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """Every field that a JSON schema of an OpenAPI document names.

    Args:
        schema: The schema of a body.
        names: The document's `components.schemas`.
    """
    if len(path) > _DEPTH:
        return
    if "$ref" in schema:
        yield from schema_places(names[schema["$ref"].rpartition("/")[2]], names, path)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from schema_places(option, names, path)
    for name, field in schema.get("properties", {}).items():
        yield (*path, name)
        yield from schema_places(field, names, (*path, name))
    if isinstance(schema.get("items"), Mapping):
        yield from schema_places(schema["items"], names, (*path, 0))


def spoiled(body: Any, known: list[Path], rng: random.Random) -> Any:
    """A copy of a body, spoiled at one to three places."""
    made = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        made = _spoil(made, rng.choice(known), rng)
    return made


def _spoil(body: Any, path: Path, rng: random.Random) -> Any:
    if not path:
        return hostile(rng) if rng.random() < 0.3 else body
    parent = _parent(body, path)
    if isinstance(parent, dict):
        _spoil_field(parent, str(path[-1]), rng)
    elif isinstance(parent, list):
        parent[:1] = [hostile(rng)]
    return body


def _parent(body: Any, path: Path) -> Any:
    """What holds the last part of a path; None where the body has another shape by now."""
    for part in path[:-1]:
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            return None
    return body


def _spoil_field(parent: dict[str, Any], name: str, rng: random.Random) -> None:
    way = rng.random()
    if way < 0.06:
        parent.pop(name, None)
    elif way < 0.1:
        parent[rng.choice((name.upper(), name + "\x00", "x" * 3000, "__class__", "$ref"))] = hostile(rng)
    else:
        parent[name] = hostile(rng)
