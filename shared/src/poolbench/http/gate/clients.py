"""Count the requests and connections of each client address, and drop connections that wait too long."""

import asyncio
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from poolbench.http.gate.refusal import RefusalError
from poolbench.settings import GateSettings
from poolbench.statuses import Code

_NO_TOKEN = "(no token)"


def address_of(client: tuple[str, int] | list[object] | None) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    host = str(client[0]) if client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


class Clients:
    """Counts requests by address; those without a token share a few places."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def request(self, address: str, holds: bool, closes: bool) -> Iterator[None]:
        """Occupy a place until the block ends. Raise RefusalError (429)."""
        name = address if holds else _NO_TOKEN
        most = self._settings.requests_per_client if holds else self._settings.open_requests
        if self._under_way[name] >= most:
            whose = "requests of your address" if holds else "requests without a token"
            raise RefusalError(429, Code.BUSY, f"{most} {whose} are under way; try again later", closes=closes)
        self._under_way[name] += 1
        try:
            yield
        finally:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]


_SWEEP_S = 0.5


class Connection(Protocol):
    """The part of a connection that admission needs."""

    client: Any
    loop: asyncio.AbstractEventLoop
    last_active: float

    @property
    def idle(self) -> bool:
        """Return whether no request is in progress."""

    def check(self, now: float) -> None:
        """Refuse or drop the connection if it has waited too long."""

    def drop(self) -> None:
        """End the connection."""


class Connections:
    """Admits connections, and checks all of them twice a second."""

    def __init__(self, settings: GateSettings) -> None:
        self.settings = settings
        self._by_address: dict[str, dict[Connection, None]] = defaultdict(dict)  # ordered sets
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    def admit(self, connection: Connection) -> bool:
        """Admit a connection, if necessary by dropping an idle one. Return False if none is idle."""
        own = self._by_address[address_of(connection.client)]
        if len(own) >= self.settings.connections_per_client:
            admitted = _drop_idle(own)
        elif len(self) >= self.settings.max_connections:
            admitted = _drop_idle(self._all())
        else:
            admitted = True
        own[connection] = None  # one that is refused counts until it is closed
        if self._sweeping is None:
            self._sweeping = connection.loop.call_later(_SWEEP_S, self._sweep, connection.loop)
        return admitted

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        address = address_of(connection.client)
        self._by_address[address].pop(connection, None)
        if not self._by_address[address]:
            del self._by_address[address]

    def _all(self) -> list[Connection]:
        return [each for own in self._by_address.values() for each in own]

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in self._all():
            connection.check(loop.time())
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep, loop) if self._by_address else None


def _drop_idle(connections: Iterable[Connection]) -> bool:
    """Drop the connection that has been idle for longest."""
    idle = [each for each in connections if each.idle]
    if not idle:
        return False
    min(idle, key=lambda each: each.last_active).drop()
    return True
