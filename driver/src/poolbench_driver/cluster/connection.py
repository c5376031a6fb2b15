"""The HTTP connection to the services: it follows a token that is replaced, and waits where a service asks for it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator

import httpx

from poolbench.contracts.wire import bearer
from poolbench.errors import ConfigError
from poolbench.http.tls import client_context
from poolbench.settings import ClusterSettings, HttpSettings

CONNECT_TIMEOUT_S = 5.0
WAIT_AT_MOST_S = 60.0
"""Time that one request may spend on waiting because of 429."""

_TOO_MANY = 429
_LONGER = 0.25  # waits are up to so much longer than asked for, so that clients do not come back together
_DEFAULT_WAIT_S = 1.0


class TokenAuth(httpx.Auth):
    """Sends the token of a cluster, and reads the settings again if a service refuses it."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send a request, and once more with another token if there is one. Raise ConfigError if there is none."""
        if not self._cluster.token:
            raise ConfigError(f"no token for {self._cluster.http_address} is known here: set POOLBENCH_TOKEN")
        request.headers.update(bearer(self._cluster.token))
        response = yield request
        if response.status_code == 401 and self.renew():
            request.headers.update(bearer(self._cluster.token))
            yield request

    def renew(self) -> bool:
        """Read the token again. Return whether it is another one, for the same services."""
        try:
            cluster = ClusterSettings.load(http_only=True)
        except ConfigError:
            return False
        if cluster.http_address != self._cluster.http_address or cluster.token == self._cluster.token:
            return False
        self._cluster = cluster
        return True


class PatientTransport(httpx.BaseTransport):
    """Sends a request again after 429, once the time in `Retry-After` is over.

    A service that answers 429 has not begun the work. The last 429 is returned if the waits would exceed
    `WAIT_AT_MOST_S`.
    """

    def __init__(self, transport: httpx.BaseTransport, sleep: Callable[[float], None] = time.sleep) -> None:
        self._transport = transport
        self._sleep = sleep

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the first response that is not 429, or the last one."""
        left_s = WAIT_AT_MOST_S
        while True:
            response = self._transport.handle_request(request)
            wait_s = _wait_s(response) * (1 + _LONGER * random.random())
            if response.status_code != _TOO_MANY or wait_s > left_s:
                return response
            response.read()  # so that the connection can be used again
            left_s -= wait_s
            self._sleep(wait_s)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()


def connect(cluster: ClusterSettings, timeout_s: float) -> tuple[httpx.Client, TokenAuth]:
    """Return a client of the services, and what it authenticates with.

    Raise ConfigError for a wrong address or CA file.
    """
    auth = TokenAuth(cluster)
    timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
    transport = PatientTransport(httpx.HTTPTransport(verify=client_context(), trust_env=False))
    try:
        client = httpx.Client(
            base_url=cluster.http_address, auth=auth, timeout=timeout, transport=transport, trust_env=False
        )
    except httpx.InvalidURL as error:
        source = cluster.http_from or "POOLBENCH_HTTP"
        raise ConfigError(f"{source}: {cluster.http_address!r} is not an address: {error}") from None
    return client, auth


def why(error: httpx.HTTPError, cluster: ClusterSettings) -> str:
    """Return why services cannot be reached, what names their address, and what to do."""
    message = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return (
            f"{message}; if the certificate is of your own authority, name that in {HttpSettings.variable('ca_file')}"
        )
    if cluster.store_uri:
        return f"{message}; is the cluster up? (make cluster-up)"
    return f"{message}; is the cluster up? {cluster.http_from} names this address"


def _wait_s(response: httpx.Response) -> float:
    """Return the seconds of `Retry-After`; our services never send a date."""
    try:
        return max(float(response.headers.get("retry-after", _DEFAULT_WAIT_S)), 0.0)
    except ValueError:
        return _DEFAULT_WAIT_S
