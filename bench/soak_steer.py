"""Thousands of short requests, many of them cancelled by the client, must leave nothing in use.

    python bench/soak_steer.py [--requests 10000] [--model demo] [--clients 64] [--warm 16000]

Serves the steerer over HTTP in this process and requests texts of 1-4 tokens: steered by one of 48 vectors or
not, whole or streamed. About a third are cancelled at a random moment, some are wrong on purpose, and vectors are
registered meanwhile so that the bank evicts. At the end no row, vector, place or engine request may be in
use, and the memory of this process and of the engine may have grown by no more than --max-growth-mib since a
third of the requests was done. vLLM's own caches (kernels by shape, allocator) grow first: on CPUs by some 40 KiB per
request, ever more slowly. So --warm unsteered requests are sent before, straight to the engine. Then
1,000 vectors are registered over HTTP twice, and timed. Writes `bench/out/soak_steer.json`; exit code 1 on a leak.
"""

import argparse
import asyncio
import gc
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import psutil
import uvicorn
from common import Parser, write_report
from safetensors.numpy import save

from poolbench.config import resolve_model
from poolbench.http.api import build_api
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from poolbench_steerer.host import EngineHost
from poolbench_steerer.service import SteererService

NUM_VECTORS, NUM_TIMED, WARM_BATCH = 48, 1000, 64
GIVEN_UP, WRONG, NEW_VECTOR = 0.33, 0.05, 0.02
TOKEN = "soak"


def main() -> int:
    """Run the soak test, print and write its figures."""
    options = parse_options()
    config = SteererSettings(model=options.model, bank_slots=NUM_TIMED, max_steered_requests=64)
    service = SteererService(EngineHost(config))
    try:
        service.host.load()
        warmed = service.host.run(resolve_model(options.model), lambda engine: warm(engine, options.warm))
        with served(service) as address:
            figures: dict[str, Any] = {"register_1000_s": register_times(service.host, address)}
            figures |= asyncio.run(soak(service.host, address, options.requests, options.clients, seed=0))
    finally:
        service.host.close()
    figures["engine_mib_by_warmth"] = warmed
    left, grown = sum(figures["left_in_use"].values()), max(figures["growth_mib"].values())
    times = figures["register_1000_s"]
    ratios = {"left_in_use": left, "growth_mib": grown, "register_1000_s": max(times.values())}
    write_report("soak_steer", options, {f"soak_steer.{name}": value for name, value in ratios.items()}, figures)
    print(figures)
    return int(bool(left or figures["engine_restarts"]) or grown > options.max_growth_mib)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--warm", type=int, default=16_000, help="unsteered requests before the first that counts")
    parser.add_argument("--max-growth-mib", type=float, default=64)
    return parser.options(requests=60, warm=16, max_growth_mib=1024)  # caches still fill at this size


@contextmanager
def served(service: SteererService) -> Iterator[str]:
    """Run the service behind a real HTTP server; yield its address."""
    config = uvicorn.Config(build_api(service, TOKEN), port=0, log_level="error", timeout_keep_alive=600)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


async def warm(engine: SteeringEngine, num_requests: int) -> list[int]:
    """Send unsteered requests of the soak's lengths; return the engine's MiB after every quarter of them."""
    chance, sizes = random.Random(0), []
    for number in range(0, num_requests, WARM_BATCH):
        prompts = [[chance.randrange(300, 1000) for _ in range(chance.randint(3, 30))] for _ in range(WARM_BATCH)]
        await engine.generate(
            [GenerationRequest(tuple(prompt), chance.randint(1, 4), ignore_eos=True) for prompt in prompts]
        )
        if (number + WARM_BATCH) * 4 // num_requests > number * 4 // num_requests:
            sizes.append(round(memory_mib()["engine"]))
    return sizes


def register_times(host: EngineHost, address: str) -> dict[str, float]:
    """Return the seconds of registering 1,000 new vectors over HTTP, as JSON and as safetensors."""
    shape, times = (NUM_TIMED, host.health()["width"]), {}
    for seed, kind in ((1, "application/json"), (2, "application/octet-stream")):
        vectors = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        content = json.dumps({"vectors": vectors.tolist()}).encode() if "json" in kind else save({"vectors": vectors})
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        began = time.monotonic()
        answer = httpx.post(f"{address}/vectors", content=content, headers=headers, timeout=60, trust_env=False)
        times[kind] = round(time.monotonic() - began, 3)
        if len(set(answer.raise_for_status().json()["vector_ids"])) != NUM_TIMED:
            raise RuntimeError(f"not all of {NUM_TIMED} vectors were registered")
    return times


async def soak(host: EngineHost, address: str, num_requests: int, num_clients: int, seed: int) -> dict[str, Any]:
    """Send all requests; return their outcomes, what is left in use, and the growth of memory."""
    began, outcomes, numbers = time.monotonic(), Counter[str](), iter(range(num_requests))
    first: dict[str, float] = {}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx.Limits(max_connections=num_clients + 1)
    async with httpx.AsyncClient(
        base_url=address, headers=headers, limits=limits, timeout=300, trust_env=False
    ) as client:
        vector_ids, num_layers = await _register(client, host, seed), host.health()["num_layers"]

        async def work() -> None:
            for number in numbers:
                if number == num_requests // 3:  # all kernels are compiled by then
                    first.update(memory_mib())
                chance = random.Random(seed * 1_000_003 + number)
                if chance.random() < NEW_VECTOR:
                    await _register(client, host, chance.getrandbits(32), 1)
                outcomes[await _one(client, chance, vector_ids, num_layers, outcomes)] += 1

        await asyncio.gather(*(work() for _ in range(num_clients)))
    left = await _left(host)
    last = memory_mib()
    return {
        "requests": num_requests,
        "clients": num_clients,
        "wall_s": round(time.monotonic() - began, 1),
        "outcomes": dict(outcomes),
        "left_in_use": left,
        "engine_restarts": host.keeper.num_restarts,
        "memory_mib": {name: round(value) for name, value in last.items()},
        "growth_mib": {name: round(last[name] - first.get(name, last[name]), 1) for name in last},
    }


async def _register(client: httpx.AsyncClient, host: EngineHost, seed: int, count: int = NUM_VECTORS) -> list[str]:
    width = host.health()["width"]
    vectors = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    answer = await client.post("/vectors", json={"vectors": vectors.tolist()})
    return list(answer.raise_for_status().json()["vector_ids"])


async def _one(
    client: httpx.AsyncClient, chance: random.Random, vector_ids: list[str], num_layers: int, outcomes: Counter[str]
) -> str:
    """Send one request and return its outcome."""
    body: dict[str, Any] = {"prompt": "The report " * chance.randint(1, 8), "max_tokens": chance.randint(1, 4)}
    body |= {"n": chance.choice((1, 1, 1, 2)), "stream": chance.random() < 0.5, "temperature": chance.choice((0, 1))}
    if chance.random() < 0.8:
        layer = chance.randrange(num_layers)
        body["steering"] = {"vector_id": chance.choice(vector_ids), "layer": layer, "alpha": chance.uniform(-9, 9)}
    wrong = chance.random() < WRONG
    if wrong:
        body["steering"] = {"vector_id": "unknown", "layer": 0, "alpha": 1.0}
    asking = asyncio.create_task(_ask(client, body, outcomes))
    if chance.random() < GIVEN_UP:
        await asyncio.wait([asking], timeout=chance.expovariate(5))
        if asking.cancel():
            await asyncio.gather(asking, return_exceptions=True)
            return "given_up"
    status = await asking
    if status != (404 if wrong else 200):
        raise RuntimeError(f"{body} was answered {status}")
    return "refused" if wrong else "answered"


async def _ask(client: httpx.AsyncClient, body: dict[str, Any], resent: Counter[str]) -> int:
    try:
        return await _send(client, body)
    except (httpx.ReadError, httpx.RemoteProtocolError):
        # The client's pool may hand out a connection that a request given up is just closing.
        resent["resent"] += 1
        return await _send(client, body)


async def _send(client: httpx.AsyncClient, body: dict[str, Any]) -> int:
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        text = "".join([part async for part in answer.aiter_text()])
        if body["stream"] and answer.is_success and not text.endswith("data: [DONE]\n\n"):
            raise RuntimeError(f"{body} ended with {text[-300:]}")
        return answer.status_code


async def _left(host: EngineHost, within_s: float = 10) -> dict[str, int]:
    """Return what is in use after all requests have ended."""
    deadline = time.monotonic() + within_s
    while any((left := host.in_use()).values()) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return left


def memory_mib() -> dict[str, float]:
    """Return the resident memory of this process and of its engine."""
    gc.collect()
    me = psutil.Process()
    engines = [process for process in me.children(recursive=True) if "EngineCore" in process.name()]
    mib = 2**20
    return {"replica": me.memory_info().rss / mib, "engine": sum(p.memory_info().rss for p in engines) / mib}


if __name__ == "__main__":
    sys.exit(main())
