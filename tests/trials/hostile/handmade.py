"""Requests written by hand that a cluster under load could fall over: vectors that overflow, deep and huge bodies.

The other ways in that people try first (names that are paths, costs, tokens, routes, media types) are tested for each
verb in `tests/system/gate`, `shared/tests/http` and `services/steerer/tests/http`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.trials.hostile.bodies import VERBS, WIDTH
from tests.trials.hostile.case import Case
from tests.trials.hostile.values import Raw, deep, encode

_JSON = ("content-type", "application/json")
_HUGE = 9 * 2**20


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
