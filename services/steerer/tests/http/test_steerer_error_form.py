"""What the routes of the OpenAI API answer to a body that is not said to be JSON."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from poolbench_steerer.http.completions.errors import OpenAIRoute


class Body(BaseModel):
    """A body with one field."""

    prompt: str


def test_a_body_without_its_type_names_the_header() -> None:
    """As `curl -d` sends it."""
    router, api = APIRouter(route_class=OpenAIRoute), FastAPI()

    @router.post("/v1/completions")
    def answer(body: Body) -> str:
        return body.prompt

    api.include_router(router)
    client = TestClient(api)
    refused = client.post("/v1/completions", content=b'{"prompt": "a"}')
    assert refused.status_code == 400
    assert "Content-Type: application/json" in refused.json()["error"]["message"]
    assert client.post("/v1/completions", json={"prompt": "a"}).json() == "a"
