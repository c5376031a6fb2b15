"""Failures of S3 requests: which are tried again and when, with full jitter and a deadline, and what users see."""

import itertools
import random
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from poolbench.errors import AccessDeniedError, ConfigError, NotFoundError, PoolbenchError, StoreError
from poolbench.settings import S3Settings
from poolbench.telemetry.catalog import STORE_RETRIES

T = TypeVar("T")

_BASE_S, _CAP_S = 0.05, 5.0
_BUSY = (429, 500, 502, 503, 504)
_CONFLICT = 409
#: Codes of 400 and 409 that mean "try again".
_TRANSIENT = ("RequestTimeout", "IncompleteBody", "OperationAborted", "ConditionalRequestConflict")
#: What an operation raises if it fails.
FAILURES = (MinioException, urllib3.exceptions.HTTPError, OSError)
_ABSENT = ("NoSuchKey", "NoSuchObject", "NoSuchVersion")
_DENIED = (401, 403)
_SKEWED = "RequestTimeTooSkewed"
_OTHER_REGION = (
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "InvalidLocationConstraint",
    "InvalidRegion",
)
_REGION = re.compile(rb"<Region>([\w-]{1,64})</Region>")


def retried(send: Callable[[], T], deadline_s: float, *, conditional: bool = False) -> T:
    """Call `send` until it succeeds, fails permanently, or `deadline_s` seconds are over.

    On failure, raise the last error.

    The pause before attempt n is uniform between 0 and min(cap, base * 2**n), so that workers that failed together do
    not all retry together.

    Args:
        send: Sends one request. It signs each attempt, so that no signature is older than one attempt.
        deadline_s: Seconds after which no further attempt starts.
        conditional: Whether the write has a condition. If so, a 409 means a conflict with another write.

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
            response = error.response if isinstance(error, S3Error) else None
            retry_after = response.headers.get("retry-after", "") if response is not None else ""
            pause_s = max(jitter_s, float(retry_after) if retry_after.isdigit() else 0.0)
            if time.monotonic() + pause_s > ends_s:
                raise
        STORE_RETRIES.add()
        time.sleep(pause_s)
    raise AssertionError("the loop returns or raises")


def status_of(error: Exception) -> int:
    """Return the HTTP status of a failed request, or 0 if there was no response."""
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


@contextmanager
def explained(uri: str, service: S3Settings, doing: str) -> Iterator[None]:
    """Turn failures inside the block into NotFoundError, AccessDeniedError, ConfigError or StoreError."""
    try:
        yield
    except FAILURES as error:
        raise _explained(error, f"object store {uri}, {doing}", service) from (
            None if isinstance(error, S3Error) and error.code in _ABSENT else error
        )


def _explained(error: Exception, what: str, service: S3Settings) -> PoolbenchError:
    status, code = status_of(error), getattr(error, "code", None)
    if code in _ABSENT:
        return NotFoundError(f"{what}: there is no such object")
    if code in _OTHER_REGION or status == 301 or (status == 400 and _region_of(error)):
        name, region = service.variable("region"), _region_of(error)
        where = f"in region {region}" if region else "in another region, or there is no such region"
        remedy = f"set {name} to the region of the bucket"
        return ConfigError(f"{what}: the bucket lies {where}, but {name} is {service.region!r}; {remedy}")
    if code == _SKEWED:
        return StoreError(f"{what}: the clock of this machine is wrong, and the store does not say by how much; set it")
    if status in _DENIED:
        remedy = f"check what {service.variable('credentials')}={service.credentials} gives, and the bucket's policy"
        if service.credentials == "keys":
            remedy = f"check {service.variable('access_key')} and _SECRET_KEY, and what the bucket's policy allows"
        return AccessDeniedError(f"{what}: the credentials are refused ({code or status}); {remedy}")
    if status == 501:
        return ConfigError(f"{what}: the service does not support this request ({code})")
    if isinstance(error, S3Error):
        return StoreError(f"{what}: {code}: {error.message}")
    if status:
        return StoreError(f"{what}: the service answered {status}; check {service.variable('endpoint')}")
    return StoreError(f"{what}: no answer ({error}); check {service.variable('endpoint')}")


def _region_of(error: Exception) -> str:
    """Return the region that the response of an error names, or "" if there is no such region."""
    response = error.response if isinstance(error, S3Error) else None
    if response is None:
        return ""
    match = _REGION.search(response.data or b"")
    return response.headers.get("x-amz-bucket-region", "") or (match[1].decode() if match else "")
