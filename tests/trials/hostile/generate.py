"""The whole list of hostile requests: number n is the same whatever else is sent."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.trials.hostile import wire
from tests.trials.hostile.bodies import QUERIES, VERBS
from tests.trials.hostile.case import Case
from tests.trials.hostile.handmade import catalogue
from tests.trials.hostile.mutate import Path, places, schema_places, spoiled
from tests.trials.hostile.values import NAMES, encode

from poolbench.contracts.wire import SERVICES

_WIRE_SHARE = 0.14
_QUERY_SHARE = 0.06
_STREAM = {"prompt": "The report", "max_tokens": 60, "stream": True}


@dataclass
class Generator:
    """Makes cases by number.

    Attributes:
        documents: OpenAPI documents by service, where the services serve them.
    """

    seed: int
    token: str
    documents: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        self._catalogue = catalogue(self.token)
        self._places = {path: self._known(path, body) for path, body in VERBS.items()}

    def case(self, number: int) -> Case:
        """The case of this number: first those made by hand, then those drawn."""
        if number < len(self._catalogue):
            return self._catalogue[number]
        rng = self.rng(number)
        draw = rng.random()
        if draw < _WIRE_SHARE:
            return self._on_wire(number, rng)
        if draw < _WIRE_SHARE + _QUERY_SHARE:
            return self._query(number, rng)
        return self._spoiled(number, rng)

    def rng(self, number: int) -> random.Random:
        """The randomness of one case."""
        return random.Random(f"{self.seed}/request/{number}")

    def _headers(self, *further: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"), *further)

    def _spoiled(self, number: int, rng: random.Random) -> Case:
        path = rng.choice(list(VERBS))
        body = encode(spoiled(VERBS[path], self._places[path], rng))
        if rng.random() < 0.05:
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(rng.randrange(4)) + body[at + 1 :]
        return Case(number, "spoiled", "POST", path, self._headers(("content-type", "application/json")), body)

    def _query(self, number: int, rng: random.Random) -> Case:
        path = rng.choice(list(QUERIES))
        query = "&".join(f"{name}={quote(rng.choice(NAMES), errors='surrogatepass')}" for name in QUERIES[path])
        return Case(number, "query", "GET", f"{path}?{query}" if query else path, self._headers())

    def _on_wire(self, number: int, rng: random.Random) -> Case:
        name = rng.choice(list(wire.ABUSES))
        path, body = rng.choice([(path, body) for path, body in VERBS.items() if path != "/scorer/train"])
        if name == "breaks_stream":
            path, body = "/steerer/v1/completions", _STREAM
        kind = ("content-type", "application/json")
        headers = self._headers(kind) if rng.random() < 0.5 else (kind,)
        return Case(number, "wire", "POST", path, headers, encode(body), wire=name)

    def _known(self, path: str, body: Any) -> list[Path]:
        """The places that a body has, and those that the service's schema names beside them."""
        found = list(places(body))
        service = path.split("/")[1]
        document = self.documents.get(service, {})
        verb = document.get("paths", {}).get(path.removeprefix(f"/{service}"), {}).get("post", {})
        content = verb.get("requestBody", {}).get("content", {}).get("application/json", {})
        names = document.get("components", {}).get("schemas", {})
        found += [place for place in schema_places(content.get("schema", {}), names) if place not in found]
        return found


def documents_of(get: Any) -> dict[str, Any]:
    """The OpenAPI documents of all services; `get` fetches JSON from a path."""
    return {service: get(f"/{service}/openapi.json") for service in SERVICES}
