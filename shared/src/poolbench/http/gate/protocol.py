"""uvicorn's HTTP protocol with bounds on everything outside of a complete request."""

from enum import Enum
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from poolbench.http.gate.clients import Connections
from poolbench.http.gate.refusal import RefusalError
from poolbench.settings import GateSettings
from poolbench.statuses import Code
from poolbench.telemetry.catalog import HTTP_REFUSALS

MAX_PIPELINE = 16
MAX_SURPLUS = 1 << 16  # bytes after a request that begin no other
BODY_OVERHEAD = 16  # bytes on the wire for each byte of a body: chunks of one byte have 6
_UNREADABLE = "the request is not valid HTTP/1.1"


class _Part(Enum):
    NOTHING = "nothing"
    HEADERS = "headers"
    BODY = "body"


class GateProtocol(HttpToolsProtocol):
    """One connection. `registry` is set by `protocol_class`."""

    registry: ClassVar[Connections]

    def connection_made(self, transport: Any) -> None:
        """Refuse the connection if there are too many."""
        super().connection_made(transport)
        self._part = _Part.NOTHING
        self._refusal: RefusalError | None = None
        self._raw_bytes = self._body_bytes = self._header_bytes = self._num_headers = 0
        self._closing_since: float | None = None
        self._unread: tuple[int, float] = (0, 0.0)
        self.last_active = self.loop.time()
        self._waits_since: float | None = self.last_active
        if not self.registry.admit(self):
            most = self.registry.settings.connections_per_client
            self._write(RefusalError(429, Code.BUSY, f"more than {most} connections of your address; use fewer"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self.registry.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and refuse what exceeds a bound."""
        if self.transport.is_closing():
            return
        self._raw_bytes += len(data)
        self.last_active = self.loop.time()
        super().data_received(data)
        if self.transport.is_closing():
            return
        limits = self.registry.settings
        if self._part is _Part.HEADERS and self._raw_bytes > (limits.max_header_kib + limits.max_url_kib) * 1024:
            self._refuse(self._too_many_headers())
        elif self._part is _Part.BODY and self._raw_bytes > MAX_SURPLUS + BODY_OVERHEAD * self._body_bytes:
            self._refuse(RefusalError(400, Code.HTTP, "the chunks of the body have more framing than content"))
        elif self._part is _Part.NOTHING and self._raw_bytes > MAX_SURPLUS:
            self.drop()
        elif self.idle and self._waits_since is None:
            self._waits_since = self.loop.time()

    def on_message_begin(self) -> None:
        """Reset the counters of a request."""
        super().on_message_begin()
        self._part = _Part.HEADERS
        self._raw_bytes = self._body_bytes = self._header_bytes = self._num_headers = 0

    def on_url(self, url: bytes) -> None:
        """Bound the length of the path."""
        super().on_url(url)
        if len(self.url) > (limit := self.registry.settings.max_url_kib) * 1024:
            raise self._noted(RefusalError(414, Code.HTTP, f"path and query exceed {limit} KiB"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Bound the headers and trailers."""
        self._header_bytes += len(name) + len(value)
        self._num_headers += 1
        limits = self.registry.settings
        if self._header_bytes > limits.max_header_kib * 1024 or self._num_headers > limits.max_headers:
            raise self._noted(self._too_many_headers())
        if self._part is _Part.HEADERS:  # trailers would be added to the headers of a request that is under way
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse upgrades and long pipelines; otherwise the request can be answered."""
        if self.parser.should_upgrade():
            raise self._noted(RefusalError(400, "upgrade", "upgrades and CONNECT are refused; send plain HTTP/1.1"))
        if len(self.pipeline) >= MAX_PIPELINE:
            said = f"more than {MAX_PIPELINE} requests before the first answer"
            raise self._noted(RefusalError(400, Code.HTTP, said))
        self._part = _Part.BODY
        self._raw_bytes = 0
        self._waits_since = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a part of a body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._part = _Part.NOTHING
        self._raw_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what uvicorn's parser refuses, and what was refused above."""
        self._refuse(self._refusal or RefusalError(400, Code.HTTP, _UNREADABLE))

    def check(self, now: float) -> None:
        """End the connection if it has waited too long for headers, for its client to read, or for its end."""
        limits = self.registry.settings
        if self.transport.is_closing():
            self._closing_since = now if self._closing_since is None else self._closing_since
            if now - self._closing_since > limits.answer_timeout_s:
                self.drop()
        elif self._waits_since is not None and now - self._waits_since > limits.header_timeout_s:
            if self._part is _Part.HEADERS:
                said = f"the headers did not come within {limits.header_timeout_s:g} s"
                self._refuse(RefusalError(408, Code.TOO_SLOW, said))
            else:
                self.transport.close()
        elif self._is_unread_for(now) > limits.answer_timeout_s:
            self.drop()

    @property
    def idle(self) -> bool:
        """Return whether no request is being sent or answered."""
        return self._part is not _Part.BODY and not self._busy()

    def drop(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def _is_unread_for(self, now: float) -> float:
        """Return the seconds since the client last read of what waits for it."""
        size = self.transport.get_write_buffer_size()
        before, since = self._unread
        if size == 0 or size != before:
            self._unread = (size, now)
            return 0.0
        return now - since

    def _busy(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _too_many_headers(self) -> RefusalError:
        limits = self.registry.settings
        said = f"headers and trailers exceed {limits.max_header_kib} KiB or {limits.max_headers} lines"
        return RefusalError(431, Code.HTTP, said)

    def _noted(self, refusal: RefusalError) -> RefusalError:
        """Keep the refusal: the parser wraps the exceptions of its callbacks."""
        self._refusal = refusal
        return refusal

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer and close; in the middle of another response, close only."""
        of_earlier = self._busy() and (self._part is not _Part.BODY or bool(self.pipeline))
        if of_earlier or (self._busy() and self.cycle.response_started):
            self.drop()
        else:
            self._write(refusal)

    def _write(self, refusal: RefusalError) -> None:
        refusal.closes = True
        HTTP_REFUSALS.add(code=refusal.code)
        body = refusal.body()
        lines = [STATUS_LINE[refusal.status]]
        lines += [b"%s: %s\r\n" % header for header in refusal.headers(len(body))]
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        self.transport.close()


def protocol_class(settings: GateSettings) -> type[GateProtocol]:
    """Return the protocol of one server, with connections of its own."""
    return type("BoundGateProtocol", (GateProtocol,), {"registry": Connections(settings)})
