"""The HTTP face of a service: token, health, docs, error bodies."""

from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from pydantic import BaseModel

from poolbench.errors import ConfigError, UnknownStrategyError
from poolbench.runtime.http import build_api

TOKEN = "a-test-token"
GOOD = {"Authorization": f"Bearer {TOKEN}"}


class Question(BaseModel):
    """A request with one field."""

    x: int


class Halving:
    """A service with one verb, which fails in every way a verb may."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def routes(self, router: APIRouter) -> None:
        @router.post("/half")
        def half(question: Question) -> dict[str, float]:
            if question.x == 13:
                raise UnknownStrategyError("A1_meen", ["A1_mean"])
            return {"half": 10 / question.x}

    def health(self) -> dict[str, Any]:
        return {"loaded": "nothing"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(build_api(Halving(), TOKEN), raise_server_exceptions=False)


def test_a_verb_answers_with_the_token_only(client: TestClient) -> None:
    assert client.post("/half", json={"x": 4}, headers=GOOD).json() == {"half": 2.5}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        refused = client.post("/half", json={"x": 4}, headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "unauthorized"
        assert refused.headers["www-authenticate"] == "Bearer"


def test_health_says_more_to_who_holds_the_token(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/health", headers=GOOD).json() == {"status": "ok", "loaded": "nothing"}


def test_docs_are_open_and_describe_the_verbs(client: TestClient) -> None:
    assert client.get("/docs").status_code == 200
    assert "/half" in client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "said"),
    [
        ("/half", {"x": "many"}, 422, "input", "body.x"),
        ("/half", {"x": 13}, 404, "unknown_strategy", "did you mean A1_mean"),
        ("/half", {"x": 0}, 500, "internal", "ZeroDivisionError"),
        ("/none", {}, 404, "not_found", "Not Found"),
    ],
)
def test_errors_are_json_with_a_code(
    client: TestClient, path: str, body: dict[str, Any], status: int, code: str, said: str
) -> None:
    answer = client.post(path, json=body, headers=GOOD)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert said in answer.json()["error"]["message"]
    assert "Traceback" not in answer.text


def test_a_service_without_token_does_not_start() -> None:
    with pytest.raises(ConfigError, match="POOLBENCH_TOKEN"):
        build_api(Halving(), "")
