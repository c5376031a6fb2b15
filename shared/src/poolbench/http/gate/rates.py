"""Limit how many requests each bearer token may send: an allowance that is used up and refills (a token bucket)."""

import time
from collections.abc import Callable

from poolbench.http.gate.refusal import RefusalError
from poolbench.settings import GateSettings
from poolbench.statuses import Code

_MAX_HOLDERS = 64
"""Names to remember: of the valid tokens, and of those that were replaced."""


class Rates:
    """The allowance of each token, by the name that is made from its hash.

    Args:
        settings: `token_requests_per_s` and `token_burst`.
        clock: Seconds that never go back.
    """

    def __init__(self, settings: GateSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = settings.token_requests_per_s
        self._burst = float(settings.token_burst)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # requests that are left, and when that was

    def spend(self, holder: str, *, closes: bool) -> None:
        """Count one request. Raise RefusalError (429), which says when the next one is allowed."""
        now_s = self._clock()
        left, since_s = self._left.pop(holder, (self._burst, now_s))
        left = min(self._burst, left + (now_s - since_s) * self._per_s)
        allowed = left >= 1
        self._left[holder] = (left - 1 if allowed else left, now_s)
        while len(self._left) > _MAX_HOLDERS:
            del self._left[next(iter(self._left))]  # the one that was used longest ago
        if not allowed:
            said = (
                f"the requests with this token exceed {self._per_s:g} per second and a burst of {self._burst:g}; "
                "wait as long as `Retry-After` says, and send several texts or vectors per request"
            )
            raise RefusalError(429, Code.BUSY, said, closes=closes, retry_after_s=(1 - left) / self._per_s)
