"""The HTTP face of a service: token, health, docs, error bodies."""

import re
from typing import Any

import pytest
from fastapi import APIRouter, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel

from poolbench.errors import ConfigError, UnknownStrategyError
from poolbench.http.api import build_api
from poolbench.http.openapi import errors

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
        @router.post("/half", responses={status: answer for status, answer in errors().items() if status != 422})
        def half(question: Question) -> dict[str, float]:
            if question.x == 13:
                raise UnknownStrategyError("A1_meen", ["A1_mean"])
            return {"half": 10 / question.x}

        @router.get("/half", responses=errors(body=False))
        def last() -> dict[str, float]:
            return {"half": 0}

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
    found = client.get("/health", headers=GOOD).json()
    assert {"version", "steps", "time_s", "disk_free_bytes"} <= found.pop("replica").keys()
    assert found == {"status": "ok", "loaded": "nothing"}


def test_docs_are_open_and_describe_the_verbs(client: TestClient) -> None:
    assert client.get("/docs").status_code == 200
    assert "/half" in client.get("/openapi.json").json()["paths"]


def test_the_page_of_docs_needs_no_other_host_than_its_service(client: TestClient) -> None:
    page = client.get("/docs").text
    links = re.findall(r"""(?:href|src)=["']([^"']+)["']|url: '([^']+)'""", page)
    found = {link or url for link, url in links}
    assert found == {"openapi.json", "docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "docs/favicon.png"}
    assert all(client.get(f"/{link}").status_code == 200 for link in found)
    assert "https://" not in page


def test_the_document_has_our_error_bodies_only(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert "422" not in described["paths"]["/half"]["post"]["responses"]  # this verb answers another status
    assert not {"HTTPValidationError", "ValidationError"} & described["components"]["schemas"].keys()
    unauthorized = described["paths"]["/half"]["get"]["responses"]["401"]
    assert unauthorized["headers"]["WWW-Authenticate"]["required"]
    assert unauthorized["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")


def test_memory_that_runs_out_while_a_body_is_read_is_not_the_clients_fault(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: Request) -> None:
        raise MemoryError

    monkeypatch.setattr(Request, "json", fails)
    refused = client.post("/half", json={"x": 4}, headers=GOOD)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "out_of_memory")


def test_a_wrong_method_is_answered_with_the_allowed_ones(client: TestClient) -> None:
    refused = client.put("/half", headers=GOOD)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
    assert refused.json()["error"]["code"] == "method_not_allowed"


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


def test_a_body_that_is_not_said_to_be_json_names_the_header(client: TestClient) -> None:
    """As `curl -d` sends it."""
    for headers in (GOOD, GOOD | {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = client.post("/half", content=b'{"x": 4}', headers=headers)
        assert answer.status_code == 422
        assert "Content-Type: application/json" in answer.json()["error"]["message"]
    for kind in ("application/json", "application/json; charset=utf-8"):
        answer = client.post("/half", content=b'\xef\xbb\xbf{"x": 4}', headers=GOOD | {"Content-Type": kind})
        assert answer.json() == {"half": 2.5}


def test_a_service_without_token_does_not_start() -> None:
    with pytest.raises(ConfigError, match="POOLBENCH_TOKEN"):
        build_api(Halving(), "")
