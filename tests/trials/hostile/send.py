"""Sending cases: ordinary ones by an HTTP client, the rest on raw sockets; from loopback addresses of their own.

Honest requests and questions for the health of every service run beside them.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import httpx
from tests.trials.hostile import wire
from tests.trials.hostile.case import Case, Outcome, judge
from tests.trials.hostile.control import Control
from tests.trials.hostile.generate import Generator

_HOSTILE_SOURCES = tuple(f"127.0.0.{number}" for number in range(11, 19))
_WIRE_SOURCES = tuple(f"127.0.0.{number}" for number in range(21, 29))
_TIMEOUT_S = 40.0
_AT_ONCE = 10
_WIRES_AT_ONCE = 48
_CONTROLS = 2
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass(frozen=True)
class Settings:
    """How much is sent, and from which seed.

    Attributes:
        seed: Every request is drawn from it and its own number alone.
        num_requests: Hostile requests.
        only: Numbers of the requests to send, to reproduce a finding; empty for all.
    """

    seed: int = 1
    num_requests: int = 2000
    only: tuple[int, ...] = ()

    @classmethod
    def from_environment(cls) -> Settings:
        """Read HOSTILE_SEED, HOSTILE_N and HOSTILE_ONLY (numbers, or ranges such as 40-60)."""
        return cls(
            seed=int(os.environ.get("HOSTILE_SEED", "1")),
            num_requests=int(os.environ.get("HOSTILE_N", "2000")),
            only=_numbers(os.environ.get("HOSTILE_ONLY", "")),
        )

    def command(self, numbers: str) -> str:
        """Return the command that sends these alone again."""
        return f"HOSTILE_SEED={self.seed} HOSTILE_ONLY={numbers} make test-hostile"


def _numbers(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


@dataclass
class Sender:
    """Sends cases to one cluster; one of these for a trial."""

    address: str
    _clients: list[httpx.AsyncClient] = field(default_factory=list)

    async def __aenter__(self) -> Sender:
        for source in _HOSTILE_SOURCES:
            transport = httpx.AsyncHTTPTransport(local_address=source)
            self._clients.append(httpx.AsyncClient(transport=transport, timeout=_TIMEOUT_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(client.aclose() for client in self._clients))

    async def send(self, case: Case, rng: random.Random) -> Outcome:
        """Sends one case and judges what comes of it."""
        started = time.monotonic()
        sending = self._abuse(case, rng) if case.wire else self._ask(case)
        status, body, note = await sending
        intended = bool(case.wire)
        defect = judge(case, status, body, intended=intended, note=note)
        return Outcome(case, status, started, time.monotonic(), intended and not status, defect or _hole(case, status))

    async def _ask(self, case: Case) -> tuple[int, bytes, str]:
        client = self._clients[case.number % len(self._clients)]
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in case.headers]
        target = {"target": case.path.encode("latin-1", "replace")}
        request = client.build_request(
            case.method, self.address, headers=headers, content=case.body or None, extensions=target
        )
        try:
            answer = await client.send(request)
        except httpx.HTTPError as error:
            return 0, b"", f"{type(error).__name__} {error}"
        return answer.status_code, answer.content, ""

    async def _abuse(self, case: Case, rng: random.Random) -> tuple[int, bytes, str]:
        source = _WIRE_SOURCES[case.number % len(_WIRE_SOURCES)]
        try:
            received = await asyncio.wait_for(wire.abuse(self.address, source, case, rng), _TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            return 0, b"", f"{type(error).__name__} {error}"
        found = [int(code) for code in _STATUS.findall(received)]
        final = [code for code in found if code != 100] or [0]
        return max(final) if max(final) >= 500 else final[0], received, ""


def _hole(case: Case, status: int) -> str:
    """A verb that answered somebody without a token."""
    if case.wire in ("", "no_http") or any(name == "authorization" for name, _ in case.headers):
        return ""
    return f"accepted without a token: {status}" if 100 < status < 400 else ""


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
