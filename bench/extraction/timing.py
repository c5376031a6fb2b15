"""Interleaved timing: every round runs each side once, in alternating order, so that drift affects all alike."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from common import Clock, Spent, turns


def lap(run: Callable[[], object]) -> Spent:
    """Time one call, device work included."""
    clock = Clock()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock.read()


def interleave(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Spent]]:
    """Time every side once per round; every second round runs them backwards."""
    laps: dict[str, list[Spent]] = {name: [] for name in sides}
    for name in turns(sides, rounds):
        laps[name].append(lap(sides[name]))
    return laps


def warm(sides: Mapping[str, Callable[[], object]]) -> None:
    """Run every side once, unmeasured."""
    for run in sides.values():
        lap(run)


def ratio(numerator: list[Spent], denominator: list[Spent]) -> dict[str, Any]:
    """Return the wall-clock ratios of the pairs of each round: median, quartiles, and the median in CPU time."""
    pairs = list(zip(numerator, denominator, strict=True))
    wall = sorted(above.wall_s / below.wall_s for above, below in pairs)
    cpu = [above.cpu_s / below.cpu_s for above, below in pairs]
    low, middle, high = statistics.quantiles(wall, n=4, method="inclusive") if len(wall) > 1 else wall * 3
    return {"median": middle, "quartiles": [low, high], "pairs": wall, "median_cpu_time": statistics.median(cpu)}


def seconds(laps: Mapping[str, list[Spent]]) -> dict[str, list[dict[str, float]]]:
    """Return all laps, for the report."""
    return {name: [asdict(item) for item in items] for name, items in laps.items()}
