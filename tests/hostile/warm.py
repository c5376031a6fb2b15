"""Filling the caches that grow to a bound, so that memory that grows after it is a leak."""

from __future__ import annotations

import asyncio
import random

import httpx
from tests.hostile.cluster import Target, total
from tests.hostile.generate import Generator
from tests.hostile.send import Sender

_TEXTS_AT_ONCE = 32
_WORDS = ("report", "rain", "although", "harbour", "sun", "because", "night", "ships", "came", "quiet", "never", "left")
#: Requests of another seed, of every kind: whatever they make a process load once is loaded before the count.
_HOSTILE = 300
_OTHERS = 10**6
_AT_ONCE = 15
_NUM_WORDS = 400
#: A batch that adds less than this share finds the cache full already.
_FULL = 0.01
_MOST_BATCHES = 8


async def fill(target: Target, generator: Generator) -> None:
    """Scores texts that share no beginning until the cache of keys and values is full, and sends hostile requests."""
    rng, used = random.Random(0), total(target.processes())
    headers = {"Authorization": f"Bearer {target.token}"}
    async with httpx.AsyncClient(base_url=target.http, headers=headers, timeout=120) as client:
        for _ in range(_MOST_BATCHES):
            texts = [" ".join(rng.choices(_WORDS, k=_NUM_WORDS)) for _ in range(_TEXTS_AT_ONCE)]
            (await client.post("/steerer/perplexity", json={"texts": texts})).raise_for_status()
            before, used = used, total(target.processes())
            if used < before * (1 + _FULL):
                break
    async with Sender(target.http) as sender:
        for first in range(0, _HOSTILE, _AT_ONCE):
            numbers = range(_OTHERS + first, _OTHERS + first + _AT_ONCE)
            await asyncio.gather(*(sender.send(generator.case(n), generator.rng(n)) for n in numbers))
