"""Hostile requests, with honest ones and the health of every service beside them."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.trials.hostile.case import Case, Outcome
from tests.trials.hostile.control import Control
from tests.trials.hostile.generate import Generator
from tests.trials.hostile.send import Sender
from tests.trials.hostile.settings import Settings

_AT_ONCE = 10
_WIRES_AT_ONCE = 48
_CONTROLS = 2


@dataclass
class Sent:
    """What came of all requests."""

    outcomes: list[Outcome] = field(default_factory=list)

    def between(self, started_s: float, ended_s: float) -> list[Outcome]:
        """The requests that were under way at any time between two, the longest first."""
        found = [each for each in self.outcomes if each.started_s < ended_s and each.ended_s > started_s]
        return sorted(found, key=lambda each: each.started_s - each.ended_s)


async def send_all(address: str, generator: Generator, control: Control, settings: Settings) -> Sent:
    """Sends every case, with bounded concurrency; the control load runs from before the first to after the last."""
    numbers: Sequence[int] = settings.only or range(settings.num_requests)
    cases = [generator.case(number) for number in numbers]
    sent, ended = Sent(), asyncio.Event()
    loads = [asyncio.create_task(control.compare(ended)) for _ in range(_CONTROLS)]
    try:
        async with Sender(address) as sender:
            await send(sender, generator, cases, sent)
    finally:
        ended.set()
        await asyncio.gather(*loads)
    return sent


async def send(sender: Sender, generator: Generator, cases: Iterable[Case], sent: Sent) -> None:
    """Sends cases, with bounded concurrency; those on raw sockets wait for the most part, so there may be more."""
    cases = list(cases)
    plain, wires = ([case for case in cases if bool(case.wire) == wire] for wire in (False, True))
    workers = [*_workers(sender, generator, plain, sent, _AT_ONCE)]
    workers += _workers(sender, generator, wires, sent, _WIRES_AT_ONCE)
    await asyncio.gather(*workers)


def _workers(
    sender: Sender, generator: Generator, cases: Iterable[Case], sent: Sent, count: int
) -> list[asyncio.Task[None]]:
    left = iter(cases)

    async def work() -> None:
        for case in left:
            sent.outcomes.append(await sender.send(case, generator.rng(-1 - case.number)))

    return [asyncio.create_task(work()) for _ in range(count)]
