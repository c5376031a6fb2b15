"""The whole list of hostile requests: number n is the same whatever else is sent.

The first ones are written by hand: what a cluster under load could fall over, as vectors that overflow, deep and huge
bodies. The other ways in that people try first (names that are paths, costs, tokens, routes, media types) are tested
for each verb in `tests/system/gate`, `shared/tests/http` and `services/steerer/tests/http`.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from tests.trials.hostile import wire
from tests.trials.hostile.bodies import QUERIES, VERBS, WIDTH
from tests.trials.hostile.case import Case
from tests.trials.hostile.mutate import Path, places, schema_places, spoiled
from tests.trials.hostile.values import NAMES, Raw, deep, encode

from poolbench.contracts.wire import SERVICES

_WIRE_SHARE = 0.14
_QUERY_SHARE = 0.06
_HUGE = 9 * 2**20
_JSON = ("content-type", "application/json")
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
        return Case(number, "spoiled", "POST", path, self._headers(_JSON), body)

    def _query(self, number: int, rng: random.Random) -> Case:
        path = rng.choice(list(QUERIES))
        query = "&".join(f"{name}={quote(rng.choice(NAMES), errors='surrogatepass')}" for name in QUERIES[path])
        return Case(number, "query", "GET", f"{path}?{query}" if query else path, self._headers())

    def _on_wire(self, number: int, rng: random.Random) -> Case:
        name = rng.choice(list(wire.ABUSES))
        path, body = rng.choice([(path, body) for path, body in VERBS.items() if path != "/scorer/train"])
        if name == "breaks_stream":
            path, body = "/steerer/v1/completions", _STREAM
        headers = self._headers(_JSON) if rng.random() < 0.5 else (_JSON,)
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


def catalogue(token: str) -> list[Case]:
    """Return all of them with the token, numbered from 0."""
    headers = (("authorization", f"Bearer {token}"), _JSON)
    return [replace(case, number=number, headers=headers) for number, case in enumerate([*steering(), *shapes()])]


def post(kind: str, path: str, body: Any, *, refused: bool = True) -> Case:
    """Return a JSON request."""
    return Case(0, kind, "POST", path, body=encode(body), refused=refused)


def steering() -> Iterator[Case]:
    """Yield vectors that overflow after scaling, in every place and operation, beside prompts of others."""
    vectors: dict[str, Any] = {
        "1e31": [1e31] * WIDTH,
        "mixed": [1e31, -1e31] * (WIDTH // 2),
        "one": [1e30] + [0.0] * (WIDTH - 1),
        "nan": [Raw("NaN")] * WIDTH,
        "inf": [Raw("1e400")] + [0.1] * (WIDTH - 1),
    }
    many = {"prompts": ["x", "y", "z", "w"], "max_tokens": 20}
    for name, vector in vectors.items():
        for layer in (0, 5):
            edit = {"vector": vector, "layer": layer, "alpha": 1e8}
            yield post(f"overflow {name}", "/steerer/generate", {**many, "steering": edit})
    spread = {"vector": vectors["1e31"], "layer": 2, "alpha": 1e8}
    for positions in ("all", "prompt", "generated", 1):
        yield post("overflow positions", "/steerer/generate", {**many, "steering": {**spread, "positions": positions}})
    for operation in ("add_preserving_norm", "clamp", "erase", "add"):
        for unit in ({"alpha": 1e8}, {"strength": 1e30}, {"strength": 1e8, "residual_norm": 1e300}):
            edit = {"vector": vectors["1e31"], "layer": 1, "operation": operation, **unit}
            yield post(f"overflow {operation}", "/steerer/generate", {**many, "steering": edit}, refused=False)
    for stream in (True, False):
        asked = {"prompt": ["x", "y"], "max_tokens": 12, "stream": stream, "logprobs": 2, "steering": spread}
        yield post("overflow completion", "/steerer/v1/completions", asked, refused=not stream)


def shapes() -> Iterator[Case]:
    """Yield bodies that are nested too deep, or larger than a service takes."""
    for path in VERBS:
        yield post("deep", path, deep(100_000))
        yield post("deep", path, {**VERBS[path], next(iter(VERBS[path])): deep(20_000, '{"a":', "}")})
    for path in ("/pooler/annotate", "/scorer/score", "/prober/probe"):
        yield Case(0, "huge", "POST", path, body=b'{"texts": ["' + b"x" * _HUGE + b'"]}', refused=True)
        yield Case(0, "huge numbers", "POST", path, body=b'{"texts": [' + b"1," * (_HUGE // 4) + b"1]}", refused=True)
