"""The driver's connection to the services: waits after 429, and a token that is replaced."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from poolbench.settings import ClusterSettings
from poolbench_driver.cluster.services import (
    WAIT_AT_MOST_S,
    PatientTransport,
    ServiceError,
    Services,
    TokenAuth,
    TokenRefusedError,
)

ADDRESS = "http://services.test"
Answering = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a cluster whose token is `old`."""
    (tmp_path / "token").write_text("old")
    recorded = {"store": "/store", "broker": "filesystem:///queue", "http": ADDRESS}
    (tmp_path / "cluster.json").write_text(json.dumps({**recorded, "token_file": str(tmp_path / "token")}))
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))
    return tmp_path


def answers(*statuses: int, wait: str = "2") -> tuple[Answering, list[httpx.Request]]:
    """A service with these answers, one after the other, and the requests that it has received."""
    left, seen = iter(statuses), list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        status = next(left)
        body = {"error": {"code": "busy", "message": "full"}} if status >= 400 else {"found": 1}
        return httpx.Response(status, json=body, headers={"Retry-After": wait} if status == 429 else {})

    return answer, seen


def patient(answer: Answering) -> tuple[httpx.Client, list[float]]:
    """A client of that service, and the times it waits."""
    waits: list[float] = []
    return httpx.Client(transport=PatientTransport(httpx.MockTransport(answer), waits.append)), waits


def test_a_request_is_sent_again_with_its_body_when_the_service_allows_it() -> None:
    answer, seen = answers(429, 429, 200)
    client, waits = patient(answer)
    assert client.post(ADDRESS, json={"texts": ["a"]}).json() == {"found": 1}
    assert [json.loads(one.content) for one in seen] == [{"texts": ["a"]}] * 3
    assert len(waits) == 2 and all(2 <= wait <= 2.5 for wait in waits)


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, seen = answers(*[429] * 1000, wait="10")
    client, waits = patient(answer)
    assert client.get(ADDRESS).status_code == 429
    assert sum(waits) <= WAIT_AT_MOST_S and len(seen) == len(waits) + 1
    for too_long in ("3600", "1e9", "inf"):
        client, waits = patient(answers(429, wait=too_long)[0])
        assert client.get(ADDRESS).status_code == 429 and not waits
    client, waits = patient(answers(429, 200, wait="Wed, 21 Oct 2026 07:28:00 GMT")[0])
    assert client.get(ADDRESS).status_code == 200 and len(waits) == 1


@pytest.mark.parametrize("status", [400, 413, 500, 503, 504])
def test_no_other_error_is_tried_again(status: int) -> None:
    answer, seen = answers(status, 200)
    assert patient(answer)[0].get(ADDRESS).status_code == status
    assert len(seen) == 1


@pytest.fixture
def cluster(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A cluster that accepts the token `new` alone; yields the tokens that it is sent."""
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        sent.append(token)
        if request.url.path.endswith("/health"):
            return httpx.Response(200, json={"status": "ok"} | ({"loaded": 1} if token == "new" else {}))
        error = {"error": {"code": "unauthorized", "message": "wrong token"}}
        return httpx.Response(200, json={"found": 1}) if token == "new" else httpx.Response(401, json=error)

    monkeypatch.setattr("httpx.HTTPTransport", lambda **_: httpx.MockTransport(answer))
    yield sent


def test_a_replaced_token_is_read_again(state: Path, cluster: list[str]) -> None:
    services, other = Services(ClusterSettings.load()), Services(ClusterSettings.load())
    (state / "token").write_text("new")
    assert services.post("prober", "probe", {}) == {"found": 1}
    assert services.get("prober", "probe") == {"found": 1}
    assert cluster == ["old", "new", "new"]
    assert other.health("prober") == {"status": "ok", "loaded": 1}


def test_a_wrong_token_is_sent_once(state: Path, cluster: list[str]) -> None:
    services = Services(ClusterSettings.load())
    with pytest.raises(TokenRefusedError, match="refused the token"):
        services.post("prober", "probe", {})
    with pytest.raises(TokenRefusedError):
        services.health("prober")
    assert cluster == ["old", "old"]


def test_the_token_of_another_cluster_is_not_sent(state: Path, cluster: list[str]) -> None:
    """The state folder may hold another cluster by now."""
    auth = TokenAuth(ClusterSettings.load())
    recorded = json.loads((state / "cluster.json").read_text())
    (state / "cluster.json").write_text(json.dumps({**recorded, "http": "http://elsewhere.test"}))
    (state / "token").write_text("new")
    assert not auth.renew()


def test_the_last_429_is_an_error_with_its_message(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, _ = answers(429, wait="3600")
    monkeypatch.setattr("httpx.HTTPTransport", lambda **_: httpx.MockTransport(answer))
    with pytest.raises(ServiceError, match="full"):
        Services(ClusterSettings.load()).post("prober", "probe", {})
