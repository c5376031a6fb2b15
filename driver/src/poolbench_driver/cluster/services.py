"""The services over HTTP: one connection with its token, what they answer, and how they fail."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import httpx

from poolbench.contracts.wire import ARROW_STREAM, END_OF_STREAM, REQUEST_ID_HEADER, bearer
from poolbench.errors import ConfigError, EndpointError, InputError, PoolbenchError, shown
from poolbench.http.tls import client_context
from poolbench.settings import ClusterSettings, HttpSettings
from poolbench.statuses import Code
from poolbench.telemetry.ids import new_request_id

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_TIMEOUT_S = 5.0
WAIT_AT_MOST_S = 60.0
"""Time that one request may spend on waiting because of 429."""

GIVEN = "connect()"
"""Where the token of settings is from that Python code gave, which nothing else replaces."""

_TOO_MANY = 429
_LONGER = 0.25  # waits are up to so much longer than asked for, so that clients do not come back together
_DEFAULT_WAIT_S = 1.0
_JSON = {"Content-Type": "application/json"}


class TokenAuth(httpx.Auth):
    """Sends the token of a cluster, and reads the settings again if a service refuses it."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send a request, and once more if it is refused and the token has changed. Raise ConfigError without token."""
        if not self._cluster.token:
            raise ConfigError(f"no token for {self._cluster.http_address} is known here: set POOLBENCH_TOKEN")
        request.headers.update(bearer(self._cluster.token))
        response = yield request
        if response.status_code == 401 and self.renew():
            request.headers.update(bearer(self._cluster.token))
            yield request

    def renew(self) -> bool:
        """Read the token again. Return True if it has changed and the services are the same."""
        if self._cluster.token_from == GIVEN:
            return False
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
    """Return a client of the services and its authentication.

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
    """Return why the services cannot be reached, which setting names their address, and what to do."""
    message = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return (
            f"{message}; if the certificate is of your own authority, name that in {HttpSettings.variable('ca_file')}"
        )
    if cluster.store_uri:
        return f"{message}; is the cluster up? (make cluster-up)"
    return f"{message}; is the cluster up? {cluster.http_from} names this address"


def _wait_s(response: httpx.Response) -> float:
    """Return the seconds of `Retry-After`, which is never a date in responses of our services."""
    try:
        return max(float(response.headers.get("retry-after", _DEFAULT_WAIT_S)), 0.0)
    except ValueError:
        return _DEFAULT_WAIT_S


HEALTH_TIMEOUT_S = 120.0  # a replica that loads a model responds late


class TokenRefusedError(EndpointError):
    """A service does not accept our token."""

    code = Code.UNAUTHORIZED

    def __init__(self, service: str, token_from: str = "POOLBENCH_TOKEN") -> None:
        super().__init__(f"{service} refused the token; {token_from} differs from the cluster's")


class SlowServiceError(EndpointError):
    """A service took a request and has not answered in time."""

    code = Code.BUSY


class ServiceError(PoolbenchError):
    """A service answered with an error."""

    def __init__(self, code: str, message: str, http_status: int) -> None:
        super().__init__(message)
        self.code, self.http_status = code, http_status


class Services:
    """The services' HTTP verbs, as functions of JSON."""

    def __init__(self, cluster: ClusterSettings, timeout_s: float = 600.0) -> None:
        self.settings = cluster
        self._http, self._auth = connect(cluster, timeout_s)

    def health(self, service: str, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any]:
        """Return a service's health. Raise EndpointError if the service does not respond or refuses our token."""
        answer = self._call("GET", service, "health", timeout=timeout_s)
        if set(answer) <= {"status"} and self._auth.renew():
            answer = self._call("GET", service, "health", timeout=timeout_s)
        if set(answer) <= {"status"}:
            raise TokenRefusedError(service, self.settings.token_from)
        return answer

    def get(self, service: str, verb: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send GET /service/verb."""
        return self._call("GET", service, verb, params=query)

    def post(self, service: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send POST /service/verb."""
        return self._call("POST", service, verb, content=_encoded(body), headers=_JSON)

    def delete(self, service: str, verb: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send DELETE /service/verb."""
        return self._call("DELETE", service, verb, params=query)

    def get_bytes(self, service: str, verb: str, query: dict[str, Any]) -> bytes:
        """Send GET /service/verb, and return the response as bytes."""
        return self._send("GET", service, verb, params=query).content

    def post_table(self, service: str, verb: str, body: dict[str, Any]) -> pa.Table:
        """Send POST /service/verb, and return a table. The Arrow stream is smaller than numbers as text."""
        headers = {"Accept": ARROW_STREAM, **_JSON}
        response = self._send("POST", service, verb, content=_encoded(body), headers=headers)
        try:
            return table_of_stream(response.content)
        except InputError:
            raise _no_service(response) from None

    def stream(self, service: str, verb: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send POST /service/verb, and yield its events as JSON objects. Leaving the loop early cancels the work."""
        address = f"/{service}/{verb}"
        try:
            headers = {REQUEST_ID_HEADER: new_request_id(), **_JSON}
            with self._http.stream("POST", address, content=_encoded(body), headers=headers) as response:
                if response.is_error:
                    response.read()
                    raise self._error(service, response)
                for line in response.iter_lines():
                    data = line.removeprefix("data: ")
                    if data == END_OF_STREAM:
                        return
                    if data != line:
                        event = dict(json.loads(data))
                        if "error" in event:
                            error = event["error"]
                            raise ServiceError(error["code"], f"{service}: {error['message']}", 503)
                        yield event
        except httpx.HTTPError as error:
            at = f"{self.settings.http_address}{address}"
            raise EndpointError(f"{service} does not answer at {at}: {why(error, self.settings)}") from None
        raise EndpointError(f"{service} ended its stream without saying that it was done")

    def _call(self, method: str, service: str, verb: str, **kwargs: Any) -> dict[str, Any]:
        response = self._send(method, service, verb, **kwargs)
        try:
            return dict(response.json())
        except ValueError:
            raise _no_service(response) from None

    def _send(self, method: str, service: str, verb: str, **kwargs: Any) -> httpx.Response:
        path = f"/{service}/{verb}"
        address = f"{self.settings.http_address}{path}"
        kwargs["headers"] = {REQUEST_ID_HEADER: new_request_id(), **kwargs.get("headers", {})}
        try:
            response = self._http.request(method, path, **kwargs)
        except httpx.ReadTimeout:
            raise SlowServiceError(
                f"{service} took the request at {address} but does not answer: busy, or stuck"
            ) from None
        except httpx.HTTPError as error:
            raise EndpointError(f"{service} does not answer at {address}: {why(error, self.settings)}") from None
        if response.is_error:
            raise self._error(service, response)
        return response

    def _error(self, service: str, response: httpx.Response) -> PoolbenchError:
        if response.status_code == 401:
            return TokenRefusedError(service, self.settings.token_from)
        return _service_error(service, response)


def _encoded(body: dict[str, Any]) -> bytes:
    """Return a request as JSON. Raise InputError for a text that is not valid Unicode, or a number that JSON lacks."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the request holds {shown(error.object[error.start])}, which is not valid Unicode; give texts in UTF-8, "
            "and a shell a locale of it, such as LC_ALL=C.UTF-8"
        ) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the request cannot be sent: {error}") from None


def open_services() -> Services:
    """Return the services of the cluster. Raise ConfigError if no setting names their address."""
    return Services(ClusterSettings.load(http_only=True))


def table_of_stream(data: bytes) -> pa.Table:
    """Return the table of an Arrow stream, checked value by value. Raise InputError for other bytes."""
    import pyarrow as pa

    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"no Arrow stream: {shown(str(error))}") from None
    return table


def _no_service(response: httpx.Response) -> EndpointError:
    return EndpointError(f"{response.url} answered, but not as a service of PoolBench does")


def _service_error(service: str, response: httpx.Response) -> ServiceError:
    status = response.status_code
    # The log of the service has the rest under this id.
    request_id = response.request.headers.get(REQUEST_ID_HEADER, "")
    which = f" (request {request_id})" if status >= 500 and request_id else ""
    try:
        error = response.json()["error"]
        return ServiceError(error["code"], f"{service}: {error['message']}{which}", status)
    except (json.JSONDecodeError, KeyError, TypeError):
        return ServiceError(Code.FAILED, f"{service} answered {status}: {response.text[:200]}{which}", status)
