"""An engine that dies under HTTP requests: nobody loses a text, and nobody waits for ever."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from services.steerer.tests.conftest import engine_processes
from tests.waiting import PATIENCE_S, wait_until

from poolbench.config import resolve_model
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.host import EngineHost
from poolbench_steerer.plugin.spec import Edit, Steering

pytestmark = pytest.mark.lane(name="engines")


@pytest.fixture(scope="module")
def mortal(steerer_config: Any, tiny_model: Path) -> Iterator[EngineHost]:
    """A host of its own, whose engine may be killed."""
    host = EngineHost(steerer_config.model_copy(update={"model": str(tiny_model)}))
    host.load()
    yield host
    host.close()


@pytest.fixture(scope="module")
def client(mortal: EngineHost, serve: Any) -> Iterator[httpx.Client]:
    headers = {"Authorization": "Bearer secret"}
    with (
        serve(mortal) as address,
        httpx.Client(base_url=address, headers=headers, timeout=300, trust_env=False) as client,
    ):
        yield client


@pytest.fixture
def kill(mortal: EngineHost) -> Callable[[int], None]:
    """Sends a signal to the engine that the host has now."""

    def strike(number: int) -> None:
        engine = mortal.keeper.engine
        assert engine is not None
        os.kill(engine.llm.engine_core.resources.engine_manager.processes[0].pid, number)

    return strike


def body(unit_vectors: np.ndarray, **change: Any) -> dict[str, Any]:
    steering = {"vector": unit_vectors[0].tolist(), "layer": 2, "alpha": 60.0}
    reading = {"vector": unit_vectors[1].tolist(), "layer": 3}
    asked = {"prompt": ["The river", "Nobody"], "max_tokens": 100, "ignore_eos": True, "steering": steering}
    return asked | {"reading": reading} | change


class Stream(threading.Thread):
    """A client that follows a streamed completion to its end."""

    def __init__(self, client: httpx.Client, asked: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.client, self.asked = client, asked | {"stream": True}
        self.events: list[str] = []

    def run(self) -> None:
        with self.client.stream("POST", "/v1/completions", json=self.asked) as answer:
            self.events.extend(line.removeprefix("data: ") for line in answer.iter_lines() if line)


@pytest.fixture
def hold_texts(mortal: EngineHost, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Keeps texts of the engine that the host has now open: a client gets some of their steps, and never their end."""

    def hold(num_steps: int) -> None:
        assert mortal.keeper.engine is not None
        engine = mortal.keeper.engine
        generate = engine.vllm_generate

        async def held(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
            async with aclosing(generate(*arguments, **options)) as outputs:
                for _ in range(num_steps):
                    if (output := await anext(outputs)).finished:
                        break
                    yield output
                await asyncio.Event().wait()

        monkeypatch.setattr(engine, "vllm_generate", held)

    return hold


def test_after_the_death_of_an_engine_a_stream_ends_with_an_error_and_the_rest_is_done_again(
    mortal, client, kill, hold_texts, unit_vectors, prompts
):
    """Killed in the midst of a stream, of a request whose answer has not begun, and of a job of a queue task."""
    asked = body(unit_vectors, temperature=0.9, seed=3)
    undisturbed = client.post("/v1/completions", json=asked).json()["choices"]
    model = resolve_model(mortal.config.model)
    (key,) = mortal.run(model, lambda engine: engine.register([unit_vectors[0]]))
    requests = [GenerationRequest(p, 100, Steering((Edit(key, 2, 60.0),)), ignore_eos=True) for p in prompts[:4]]
    expected = mortal.run(model, lambda engine: engine.generate(requests))

    restarts, before = mortal.keeper.num_restarts, engine_processes()
    hold_texts(num_steps=20)
    stream, answers = Stream(client, asked), list[Any]()

    def ask() -> None:
        answers.append(client.post("/v1/completions", json=asked).json())

    def strike() -> None:
        wait_until(lambda: stream.events)
        wait_until(lambda: mortal.in_use()["rows"] == 2 + 2 + 4)
        kill(signal.SIGKILL)

    threads = [stream, *(threading.Thread(target=work, daemon=True) for work in (ask, strike))]
    for thread in threads:
        thread.start()
    assert mortal.run(model, lambda engine: engine.generate(requests)) == expected
    for thread in threads:
        thread.join(PATIENCE_S)
    *chunks, last = map(json.loads, stream.events)
    assert (last["error"]["code"], last["error"]["type"]) == ("stream_broken", "server_error")
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert answers[0]["choices"] == undisturbed
    assert mortal.keeper.num_restarts == restarts + 1
    after = engine_processes()
    assert len(before - after) == len(after - before) == 1


@pytest.mark.lane(name="architectures")
def test_requests_under_way_and_a_call_that_gets_no_answer_survive(mortal, client, kill, unit_vectors):
    """A stopped engine takes calls and does not answer; then it dies without having seen them."""
    asked = body(unit_vectors, temperature=0.0)
    expected = client.post("/v1/completions", json=asked).json()["choices"]
    restarts, answers = mortal.keeper.num_restarts, dict[str, Any]()
    kill(signal.SIGSTOP)

    def ask(verb: str, content: dict[str, Any]) -> None:
        answers[verb] = client.post(verb, json=content).json()

    calls = {"/v1/completions": asked, "/vectors": {"vectors": unit_vectors[9:12].tolist()}}
    threads = [threading.Thread(target=ask, args=call) for call in calls.items()]
    for thread in threads:
        thread.start()
    wait_until(lambda: mortal.in_use()["jobs"] == len(calls))
    assert not answers
    kill(signal.SIGKILL)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers["/v1/completions"]["choices"] == expected
    assert len(answers["/vectors"]["vector_ids"]) == 3
    assert mortal.keeper.num_restarts == restarts + 1
    assert mortal.health()["ready"]
    assert not any(mortal.in_use().values())


def test_health_says_when_the_configured_model_cannot_be_loaded(steerer_config, serve, tmp_path):
    from poolbench.errors import ModelError

    host = EngineHost(steerer_config.model_copy(update={"model": str(tmp_path)}))
    try:
        assert host.health() == {"state": "idle", "restarts": 0, "jobs": 0, "ready": False}
        with pytest.raises(ModelError, match="cannot be loaded"):
            host.load()
        with serve(host) as address:
            answer = httpx.get(f"{address}/health", headers={"Authorization": "Bearer secret"}, timeout=PATIENCE_S)
            stranger = httpx.get(f"{address}/health", timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["status"], answer.json()["state"]) == (503, "unavailable", "failed")
        assert "cannot be loaded" in answer.json()["reason"]
        assert (stranger.status_code, stranger.json()) == (503, {"status": "unavailable"})
    finally:
        host.close()
