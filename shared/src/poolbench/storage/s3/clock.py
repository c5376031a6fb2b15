"""The time of an S3 server, from the `Date` header of its responses."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_LOG = logging.getLogger("poolbench.storage")
#: A server refuses a difference of 15 minutes. A `Date` header counts whole seconds and is as old as the network slow.
_TOLERANCE_S = 60.0
#: A `Date` header is rounded down. No object may seem to be from the future.
_DATE_STEP_S = 1.0


class ServerClock:
    """How far the server's clock is ahead of ours.

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
        """Return the server's time in seconds since the epoch, rounded up; None before its first response."""
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

        Return whether a second try makes sense: the server's `Date` differs from the date that was signed. Another
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
