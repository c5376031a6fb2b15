"""A proxy in front of a real S3 service that delays, loses, replaces or shortens responses, and counts requests."""

import http.client
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from tests.servers.background import answering
from tests.servers.quiet import Quiet

CODES = {409: "ConditionalRequestConflict", 500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Attributes:
        method: The request that it meets; empty for any.
        part: A part of its address, if only some requests are meant.
        forward: Whether the service gets the request.
        status: The response instead of the service's; None for a connection that is closed instead.
        keep: Bytes of the service's body that come through before the connection is closed.
        headers: Headers of the response.
        body: Body of the response, if the code of the status does not say enough.
        delay_s: Seconds before the request is forwarded; nothing else happens to it then.
    """

    method: str = ""
    part: str = ""
    forward: bool = True
    status: int | None = None
    keep: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay_s: float = 0.0

    def fits(self, method: str, address: str) -> bool:
        """Return whether a request is one of those that this fault meets."""
        return self.method in ("", method) and self.part in address


_MAX_SEEN = 100_000


class Meddler:
    """The proxy. `faults` meet the next requests that they fit, each once; one of `standing` meets every request."""

    def __init__(self, upstream: str, host: str = "127.0.0.1") -> None:
        self.upstream = urlsplit(upstream).netloc
        self.faults: list[Fault] = []
        self.standing: tuple[Fault, ...] = ()
        self.seen: deque[tuple[str, str]] = deque(maxlen=_MAX_SEEN)  # method and address
        self._lock = threading.Lock()
        self._server = answering(_Handler, self, host)
        self.endpoint = self._server.address

    def stop(self) -> None:
        self._server.stop()

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.seen)

    def take(self, method: str, address: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, address))
            for fault in self.faults:
                if fault.fits(method, address):
                    self.faults.remove(fault)
                    return fault
        standing = [fault for fault in self.standing if fault.fits(method, address)]
        return random.choice(standing) if standing else None


class _Handler(Quiet, BaseHTTPRequestHandler):
    owner: Meddler
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.take(self.command, self.path)
        if fault is None or fault.delay_s:
            time.sleep(fault.delay_s if fault else 0)
            return self._send(*self._forward(body))
        answer = self._forward(body) if fault.forward else None
        if fault.status is not None:
            code = CODES.get(fault.status, "Error")
            text = fault.body or f"<Error><Code>{code}</Code><Message>by the test</Message></Error>".encode()
            return self._send(fault.status, {"Content-Type": "application/xml", **fault.headers}, text)
        if answer is not None and fault.keep is not None:
            self._send(answer[0], answer[1], answer[2][: fault.keep], claimed=len(answer[2]))
        self.close_connection = True
        return None

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self.owner.upstream, timeout=120)
        try:
            upstream.request(self.command, self.path, body or None, dict(self.headers.items()))
            response = upstream.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            upstream.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes, claimed: int | None = None) -> None:
        lengths = {name: value for name, value in headers.items() if name.lower() == "content-length"}
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        length = next(iter(lengths.values()), "0") if self.command == "HEAD" else str(claimed or len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve


@contextmanager
def meddling(upstream: str) -> Iterator[Meddler]:
    """Run a proxy in front of a service."""
    meddler = Meddler(upstream)
    try:
        yield meddler
    finally:
        meddler.stop()
