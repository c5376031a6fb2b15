"""HTTP connections to an S3 server, and its time, from the `Date` header of its responses."""

import logging
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import urllib3

_LOG = logging.getLogger("poolbench.storage")
#: A server refuses a difference of 15 minutes. A `Date` header counts whole seconds and is as old as the network slow.
_TOLERANCE_S = 60.0
#: A `Date` header is rounded down. No object may seem to be from the future.
_DATE_STEP_S = 1.0
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60
#: A socket's timeout bounds how long all of one `send` takes, so a large body is sent in pieces of this size.
_PIECE_BYTES = 1 << 18
#: Connections that stay open: parallel parts of a few uploads, beside small requests.
_MAX_IDLE = 16


class ServerClock:
    """The clock of a server, as known from the dates of its responses.

    Attributes:
        correction_s: Seconds added to the date of a signature: 0 until the server refuses a date of ours.
    """

    def __init__(self) -> None:
        self.correction_s = 0.0
        self._last: tuple[str, float] | None = None  # the latest `Date`, and when it came, on the monotonic clock

    def observe(self, date: str | None) -> None:
        """Remember the `Date` header of a response."""
        if date:
            self._last = date, time.monotonic()

    def now_s(self) -> float | None:
        """Return the server's time in seconds since the epoch, rounded up, or None before its first response."""
        if self._last is None:
            return None
        date, seen_s = self._last
        sent_s = _seconds(date)
        return None if sent_s is None else sent_s + _DATE_STEP_S + time.monotonic() - seen_s

    def signing_time(self) -> datetime:
        """Return the time with which a request is signed."""
        return datetime.fromtimestamp(time.time() + self.correction_s, UTC)

    def learn(self, date: str | None, used_s: float) -> bool:
        """Correct the clock if a request signed with the correction `used_s` was refused because of its date.

        Return whether a second attempt makes sense, because the server's `Date` differs from the signed date. Another
        thread may have corrected the clock meanwhile.
        """
        sent_s = _seconds(date)
        if sent_s is None or abs(sent_s - (time.time() + used_s)) < _TOLERANCE_S:
            return False
        self.correction_s = sent_s - time.time()
        _LOG.warning(
            "the clock of this machine is %.0f s %s that of the object store; requests are dated by the store's clock",
            abs(self.correction_s),
            "behind" if self.correction_s > 0 else "ahead of",
        )
        return True


def _seconds(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None


class Connections(urllib3.PoolManager):
    """A pool of connections without automatic retries, because a retried request must be signed again."""

    def __init__(self, clock: ServerClock) -> None:
        timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_READ_TIMEOUT_S)
        super().__init__(timeout=timeout, maxsize=_MAX_IDLE, retries=False)
        self._clock = clock

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **options: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send a request. A request with a body must have a `Content-Length` header, which the client adds."""
        body = options.get("body")
        if body is not None and len(body) > _PIECE_BYTES:
            view = memoryview(body)
            options["body"] = [view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES)]
        response = super().urlopen(method, url, redirect, **options)
        self._clock.observe(response.headers.get("date"))
        return response
