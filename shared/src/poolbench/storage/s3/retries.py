"""Which failures of S3 requests are tried again, and when: full jitter and a deadline."""

from __future__ import annotations

import itertools
import random
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from poolbench.telemetry.catalog import STORE_RETRIES

T = TypeVar("T")

_BASE_S, _CAP_S = 0.05, 5.0
_BUSY = (429, 500, 502, 503, 504)
_CONFLICT = 409
#: Codes of 400 and 409 that mean "try again".
_TRANSIENT = ("RequestTimeout", "IncompleteBody", "OperationAborted", "ConditionalRequestConflict")
#: What an operation raises if it fails.
FAILURES = (MinioException, urllib3.exceptions.HTTPError, OSError)


def retried(send: Callable[[], T], deadline_s: float, *, conditional: bool = False) -> T:
    """Call `send` until it succeeds, fails for good, or `deadline_s` is over; then raise its last error.

    The pause before attempt n is uniform between 0 and min(cap, base * 2**n), so that many workers that failed at once
    do not come back at once.

    Args:
        send: Sends one request. It signs each attempt, so that no signature is older than one attempt.
        deadline_s: Seconds after which no further attempt starts.
        conditional: Whether the write has a condition. A 409 then means that it met another write.

    Reference:
        Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015: full jitter.
    """
    ends_s = time.monotonic() + deadline_s
    for attempt in itertools.count():
        try:
            return send()
        except FAILURES as error:
            if not _is_transient(error, conditional):
                raise
            jitter_s = random.uniform(0.0, min(_CAP_S, _BASE_S * 2.0 ** min(attempt, 30)))
            pause_s = max(jitter_s, _asked_s(error))
            if time.monotonic() + pause_s > ends_s:
                raise
        STORE_RETRIES.add()
        time.sleep(pause_s)
    raise AssertionError("the loop returns or raises")


def status_of(error: Exception) -> int:
    """Return the HTTP status of a failure; 0 if there was no response."""
    if isinstance(error, S3Error):
        return int(error.response.status) if error.response is not None else 0
    if isinstance(error, ServerError):
        return error.status_code
    return int(error._code) if isinstance(error, InvalidResponseError) else 0


def _is_transient(error: Exception, conditional: bool) -> bool:
    if isinstance(error, MinioException):
        status = status_of(error)
        met_another = conditional and status == _CONFLICT
        return status in _BUSY or met_another or getattr(error, "code", None) in _TRANSIENT
    reason = error.args[-1] if isinstance(error, urllib3.exceptions.SSLError) and error.args else error
    return not isinstance(reason, ssl.SSLCertVerificationError | urllib3.exceptions.LocationValueError)


def _asked_s(error: Exception) -> float:
    """Return the seconds that a busy server asks for in `Retry-After`; 0 if it gives none or a date."""
    response = error.response if isinstance(error, S3Error) else None
    retry_after = response.headers.get("retry-after", "") if response is not None else ""
    return float(retry_after) if retry_after.isdigit() else 0.0
