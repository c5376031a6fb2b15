"""Batches of an engine against the same unsteered in vLLM's default engine, and other rates."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from poolbench_steerer.engine.perplexity import score_continuations
from steering.batches import ORDINARY, Sizes, prompts, reading_requests, requests, unit_vectors
from steering.default import DefaultEngine
from steering.rates import Rates, Side, Watch, compared, empty_prefix_cache, interleaved, run

NUM_REGISTERED = 1000


async def measure(engine: SteeringEngine, default: DefaultEngine, sizes: Sizes) -> dict[str, Any]:
    """Return every comparison by name (unsteered, k1, k8, ..., reading and cold)."""
    rng, most = np.random.default_rng(0), max(sizes.settings)
    ids = await engine.register(unit_vectors(rng, most, engine.bank.width))
    plain = requests(engine, sizes, None)

    async def base(_: int) -> Rates:
        return await run(default, plain)

    def steered(batch: Sequence[GenerationRequest]) -> Side:
        async def side(_: int) -> Rates:
            return await run(engine, batch)

        return side

    await base(0)
    for batch in (plain, requests(engine, sizes, ids[: min(8, most)])):  # all ways are warm
        await run(engine, batch)
    bursts = [unit_vectors(rng, most, engine.bank.width) for _ in range(sizes.pairs)]

    async def cold(index: int) -> Rates:
        await empty_prefix_cache(engine)
        watch = Watch()
        fresh = await engine.register(bursts[index])
        generations = await engine.generate(requests(engine, sizes, fresh))
        return watch.rates(sum(len(generation.token_ids) for generation in generations))

    sides: dict[str, Side] = {"unsteered": steered(plain)}
    sides |= {f"k{n}": steered(requests(engine, sizes, ids[:n])) for n in sizes.settings}
    sides["reading"] = steered(reading_requests(engine, sizes, ids))
    pairs = await interleaved(base, sides | {"cold": cold}, sizes.pairs)
    return {name: compared(rates) for name, rates in pairs.items()}


async def registration_s(engine: SteeringEngine, num: int = NUM_REGISTERED) -> float:
    """Return the seconds until `num` new vectors can steer."""
    vectors = unit_vectors(np.random.default_rng(3), num, engine.bank.width)
    began = time.perf_counter()
    await engine.register(vectors)
    return time.perf_counter() - began


async def perplexity_rate(engine: SteeringEngine, sizes: Sizes) -> float:
    """Return scored tokens per second of texts as long as the generated ones."""
    texts = np.random.default_rng(2).integers(ORDINARY[0], ORDINARY[1], size=(sizes.batch, sizes.tokens)).tolist()
    await empty_prefix_cache(engine)
    began = time.perf_counter()
    scored = await score_continuations(engine, list(zip(prompts(sizes), texts, strict=True)))
    return sum(score.num_tokens for score in scored) / (time.perf_counter() - began)
