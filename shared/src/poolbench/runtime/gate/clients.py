"""Count the requests in progress per client address."""

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from poolbench.runtime.gate.refusal import RefusalError
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
        """Occupy a place until the block ends.

        Raises:
            RefusalError: 429.
        """
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
