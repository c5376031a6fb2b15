"""Thousands of short requests, a third of them cancelled by the client, leave nothing in use.

The steerer is asked over HTTP for texts of 1-4 tokens: steered or not, whole or streamed, some wrong on purpose.
Vectors are registered meanwhile, more than the bank holds, so that it evicts some.
"""

import asyncio
import gc
import random
from collections import Counter
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from services.steerer.tests.conftest import HEADERS, NUM_LAYERS, WIDTH, settle

pytestmark = [pytest.mark.lane(name="soak")]
NUM_REQUESTS, NUM_CLIENTS = 3000, 32
#: Vectors that requests are steered by. The other slots of the bank, 40 of 64, are for vectors that no request uses:
#: one that is used has never been idle for so long that it is evicted.
NUM_VECTORS = 24
#: Shares of requests: cancelled, wrong, and with a new vector before.
CANCELLED, WRONG, NEW_VECTOR = 0.33, 0.05, 0.02
#: vLLM's own caches (kernels by shape, allocator) take some 40 KiB per request at first, and ever less: at most 80 MiB
#: for the 2,000 requests that count.
MAX_GROWTH_MIB = 128


def test_requests_cancelled_at_random_leave_nothing_behind(host: Any, address: str) -> None:
    host.load()
    num_restarts = host.keeper.num_restarts
    asyncio.run(soak(address, NUM_REQUESTS // 2, seed=0))  # fills vLLM's own caches
    outcomes, warm_mib = asyncio.run(soak(address, NUM_REQUESTS, seed=1))
    settle(host)
    growth_mib = {name: mib - warm_mib[name] for name, mib in memory_mib().items()}
    assert outcomes.pop("resent", 0) <= NUM_REQUESTS / 20
    assert outcomes.total() == NUM_REQUESTS and set(outcomes) == {"answered", "cancelled", "refused"}
    assert host.keeper.num_restarts == num_restarts
    assert max(growth_mib.values()) < MAX_GROWTH_MIB, growth_mib


async def soak(address: str, num_requests: int, seed: int) -> tuple[Counter[str], dict[str, float]]:
    """Send all requests; return their number by outcome, and the memory after a third of them."""
    outcomes, numbers, warm_mib = Counter[str](), iter(range(num_requests)), dict[str, float]()
    limits = httpx.Limits(max_connections=NUM_CLIENTS + 1)
    async with httpx.AsyncClient(
        base_url=address, headers=HEADERS, limits=limits, timeout=300, trust_env=False
    ) as client:
        vector_ids = await register(client, NUM_VECTORS, seed)

        async def work() -> None:
            for number in numbers:
                if number == num_requests // 3:  # all kernels are compiled by then
                    warm_mib.update(memory_mib())
                chance = random.Random(seed * 1_000_003 + number)
                if chance.random() < NEW_VECTOR:
                    await register(client, 1, chance.getrandbits(32))
                outcomes[await request(client, chance, vector_ids, outcomes)] += 1

        await asyncio.gather(*(work() for _ in range(NUM_CLIENTS)))
    return outcomes, warm_mib


async def register(client: httpx.AsyncClient, count: int, seed: int) -> list[str]:
    """Register new vectors; return their ids."""
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    answer = await client.post("/vectors", json={"vectors": vectors.tolist()})
    return list(answer.raise_for_status().json()["vector_ids"])


async def request(
    client: httpx.AsyncClient, chance: random.Random, vector_ids: list[str], outcomes: Counter[str]
) -> str:
    """Send one request and return its outcome."""
    body: dict[str, Any] = {"prompt": "The report " * chance.randint(1, 8), "max_tokens": chance.randint(1, 4)}
    body |= {"n": chance.choice((1, 1, 1, 2)), "stream": chance.random() < 0.5, "temperature": chance.choice((0, 1))}
    if chance.random() < 0.8:
        layer = chance.randrange(NUM_LAYERS)
        body["steering"] = {"vector_id": chance.choice(vector_ids), "layer": layer, "alpha": chance.uniform(-9, 9)}
    wrong = chance.random() < WRONG
    if wrong:
        body["steering"] = {"vector_id": "unknown", "layer": 0, "alpha": 1.0}
    answering = asyncio.create_task(answer_status(client, body, outcomes))
    if chance.random() < CANCELLED:
        await asyncio.wait([answering], timeout=chance.expovariate(5))
        if answering.cancel():
            await asyncio.gather(answering, return_exceptions=True)
            return "cancelled"
    status = await answering
    assert status == (404 if wrong else 200), f"{body} was answered {status}"
    return "refused" if wrong else "answered"


async def answer_status(client: httpx.AsyncClient, body: dict[str, Any], outcomes: Counter[str]) -> int:
    """Return the status of the answer to a request, which is sent again if its connection breaks."""
    try:
        return await send(client, body)
    except (httpx.ReadError, httpx.RemoteProtocolError):
        # The client's pool may hand out a connection that a cancelled request is just closing.
        outcomes["resent"] += 1
        return await send(client, body)


async def send(client: httpx.AsyncClient, body: dict[str, Any]) -> int:
    """Return the status of the answer to a request; a stream has its end."""
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        text = "".join([part async for part in answer.aiter_text()])
        if body["stream"] and answer.is_success:
            assert text.endswith("data: [DONE]\n\n"), f"{body} ended with {text[-300:]}"
        return answer.status_code


def memory_mib() -> dict[str, float]:
    """Return the resident memory of this process and of its engine."""
    gc.collect()
    me = psutil.Process()
    engines = [process for process in me.children(recursive=True) if "EngineCore" in process.name()]
    mib = 2**20
    return {"replica": me.memory_info().rss / mib, "engine": sum(p.memory_info().rss for p in engines) / mib}
