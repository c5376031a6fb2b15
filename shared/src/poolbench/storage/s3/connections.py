"""HTTP connections to an S3 server: time limits, large bodies, and the server's `Date`."""

from __future__ import annotations

from typing import Any

import urllib3

from poolbench.storage.s3.clock import ServerClock

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60
#: A socket's timeout bounds how long all of one `send` takes, so a large body is sent in pieces of this size.
_PIECE_BYTES = 1 << 18
#: Connections that stay open: parallel parts of a few uploads, beside small requests.
_MAX_IDLE = 16


class Connections(urllib3.PoolManager):
    """A pool that retries nothing by itself: a retried request must be signed again."""

    def __init__(self, clock: ServerClock) -> None:
        timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_READ_TIMEOUT_S)
        super().__init__(timeout=timeout, maxsize=_MAX_IDLE, retries=False)
        self._clock = clock

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **options: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send one request. Its body must have a `Content-Length` header, as the client gives it."""
        body = options.get("body")
        if body is not None and len(body) > _PIECE_BYTES:
            view = memoryview(body)
            options["body"] = [view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES)]
        response = super().urlopen(method, url, redirect, **options)
        self._clock.observe(response.headers.get("date"))
        return response
