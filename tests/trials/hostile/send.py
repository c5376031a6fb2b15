"""Sending cases: ordinary ones by an HTTP client, the rest on raw sockets; from loopback addresses of their own."""

from __future__ import annotations

import asyncio
import random
import re
import time
from dataclasses import dataclass, field

import httpx
from tests.trials.hostile import wire
from tests.trials.hostile.case import Case, Outcome, judge

#: Hostile clients, control and health have addresses of their own.
CONTROL_SOURCE = "127.0.0.2"
HEALTH_SOURCE = "127.0.0.3"
_HOSTILE_SOURCES = tuple(f"127.0.0.{number}" for number in range(11, 19))
_WIRE_SOURCES = tuple(f"127.0.0.{number}" for number in range(21, 29))
_TIMEOUT_S = 40.0
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


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
        return Outcome(
            case, status, started, time.monotonic(), intended and not status, note, defect or _hole(case, status)
        )

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
