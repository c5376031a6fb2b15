"""All connections of the server: their number per client, and which have waited too long."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

from poolbench.runtime.gate.clients import address_of
from poolbench.settings import GateSettings

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
