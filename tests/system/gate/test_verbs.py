"""Every verb of the five services behind the gate: no token, and a body that is too large."""

import json

import pytest
from tests.servers.door import TOKEN, Door, request, serving

from poolbench.contracts.wire import HEALTH_PATH
from poolbench.http.api import build_api
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Service
from poolbench_extractor.service import create as extractor
from poolbench_pooler.service import create as pooler
from poolbench_prober.service import create as prober
from poolbench_scorer.service import ScorerService
from poolbench_steerer.service import create as steerer


@pytest.fixture(scope="module")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Method and path of each verb of the five services, by their OpenAPI documents; none loads a model."""
    store = Artifacts(FolderStore(tmp_path_factory.mktemp("store")))
    services: list[Service] = [extractor(), pooler(), prober(), steerer(), ScorerService(lambda: store)]
    return [
        (method.upper(), f"/{service.name}{path}")
        for service in services
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
