"""Every verb of the five services behind the gate: no token, and a body that is too large."""

import json

import pytest
from tests.servers.door import TOKEN, Door, request, serving

from poolbench.contracts.wire import HEALTH_PATH
from poolbench.http.api import build_api
from poolbench.worker.service import Service


@pytest.fixture(scope="module")
def verbs(services: dict[str, Service]) -> list[tuple[str, str]]:
    """Method and path of each verb of the five services, by their OpenAPI documents."""
    return [
        (method.upper(), f"/{name}{path}")
        for name, service in services.items()
        for path, operations in build_api(service, TOKEN).openapi()["paths"].items()
        for method in operations
        if path != HEALTH_PATH
    ]


def refused(door: Door, verb: tuple[str, str], *headers: str, token: str = TOKEN) -> tuple[int, str]:
    """Return how a verb was answered."""
    reply = door.ask(request(verb[1], *headers, method=verb[0], token=token))
    return reply.status, json.loads(reply.body).get("error", {}).get("code", "")


def test_every_verb_needs_the_token(verbs: list[tuple[str, str]]) -> None:
    with serving() as door:
        assert len(verbs) >= 20
        assert {refused(door, verb, token=token) for verb in verbs for token in ("", "wrong")} == {
            (401, "unauthorized")
        }
        assert not door.behind.seen


def test_every_verb_bounds_its_body(verbs: list[tuple[str, str]]) -> None:
    with serving() as door:
        taken = [verb for verb in verbs if verb[0] == "POST"]
        assert {refused(door, verb, f"Content-Length: {2**33}") for verb in taken} == {(413, "too_large")}
        assert not door.behind.seen
