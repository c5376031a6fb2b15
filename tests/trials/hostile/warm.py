"""Filling the caches that grow to a bound, so that memory that grows after it is a leak."""

import itertools
import random
from collections.abc import Awaitable, Callable

import httpx
from tests.trials.hostile.cluster import Target, total
from tests.trials.hostile.generate import Generator
from tests.trials.hostile.requests_phase import Sent, send
from tests.trials.hostile.send import Sender

_TEXTS_AT_ONCE = 32
_WORDS = ("report", "rain", "although", "harbour", "sun", "because", "night", "ships", "came", "quiet", "never", "left")
#: Requests of another seed, of every kind: whatever they make a process load once is loaded before the count.
_HOSTILE = 500
_OTHERS = 10**6
_NUM_WORDS = 400
#: A batch that adds less than this share finds the caches full already: 2,000 requests then add less than 2 %.
_FULL = 0.005
_MOST_BATCHES = 8


async def fill(target: Target, generator: Generator) -> None:
    """Score texts that share no beginning, and send hostile requests, until neither makes the processes grow."""
    rng = random.Random(0)
    headers = {"Authorization": f"Bearer {target.token}"}

    async def score() -> None:
        texts = [" ".join(rng.choices(_WORDS, k=_NUM_WORDS)) for _ in range(_TEXTS_AT_ONCE)]
        (await client.post("/steerer/perplexity", json={"texts": texts})).raise_for_status()

    async with httpx.AsyncClient(base_url=target.http, headers=headers, timeout=120) as client:
        await _until_full(target, score)
    numbers = itertools.count(_OTHERS)

    async def attack() -> None:
        cases = map(generator.case, itertools.islice(numbers, _HOSTILE))
        await send(sender, generator, cases, Sent())

    async with Sender(target.http) as sender:
        await _until_full(target, attack)


async def _until_full(target: Target, work: Callable[[], Awaitable[None]]) -> None:
    """Repeat the work until it adds less than `_FULL` to the memory of the processes."""
    for _ in range(_MOST_BATCHES):
        before = total(target.processes())
        await work()
        if total(target.processes()) < before * (1 + _FULL):
            return
