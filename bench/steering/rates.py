"""Rates of batches, and their comparison in interleaved pairs from the same, empty prefix cache."""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from steering.default import DefaultEngine

Side = Callable[[int], Awaitable["Rates"]]


@dataclass(frozen=True)
class Rates:
    """New tokens per second of wall-clock time and of CPU time (client and engine)."""

    wall: float
    cpu: float


class Watch:
    """Wall clock and CPU time since it was made."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), cpu_seconds()

    def rates(self, num_tokens: int) -> Rates:
        """Return the rates of `num_tokens` since then."""
        return Rates(num_tokens / (time.perf_counter() - self._began), num_tokens / (cpu_seconds() - self._used))


async def run(engine: SteeringEngine | DefaultEngine, batch: Sequence[GenerationRequest]) -> Rates:
    """Run one batch from an empty prefix cache."""
    await empty_prefix_cache(engine)
    watch = Watch()
    texts = await engine.generate(batch)
    return watch.rates(sum(len(text.token_ids) for text in texts))


async def empty_prefix_cache(engine: SteeringEngine | DefaultEngine) -> None:
    """Empty the prefix cache, so that every batch of a pair finds the same. Raise RuntimeError if vLLM fails to."""
    if await engine.llm.reset_prefix_cache() is False:
        raise RuntimeError("the prefix cache could not be emptied: something still runs in the engine")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the engine so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(process_times.user + process_times.system for process_times in times)


async def interleaved(base: Side, sides: Mapping[str, Side], num_pairs: int) -> dict[str, list[tuple[Rates, Rates]]]:
    """Return pairs of (base, side) by name; every other pair runs in the other order.

    All names take turns, so that a machine that becomes warm or busy affects them alike.
    """
    pairs: dict[str, list[tuple[Rates, Rates]]] = {name: [] for name in sides}
    for index in range(num_pairs):
        for name, side in sides.items():
            if index % 2:
                after = await side(index)
                pairs[name].append((await base(index), after))
            else:
                before = await base(index)
                pairs[name].append((before, await side(index)))
    return pairs


def compared(pairs: Sequence[tuple[Rates, Rates]]) -> dict[str, Any]:
    """Return the ratio of a side to the base, its pairs, and the same in CPU time, which other work disturbs less."""
    wall = sorted(side.wall / base.wall for base, side in pairs)
    cpu = sorted(side.cpu / base.cpu for base, side in pairs)
    return {
        "ratio": statistics.median(wall),
        "wall_ratios": [round(value, 3) for value in wall],
        "cpu_ratio": statistics.median(cpu),
        "cpu_ratios": [round(value, 3) for value in cpu],
        "default_tokens_per_s": statistics.median(base.wall for base, _ in pairs),
        "tokens_per_s": statistics.median(side.wall for _, side in pairs),
    }
