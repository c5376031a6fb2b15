"""Failures of S3 as errors that users see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from minio.error import S3Error

from poolbench.errors import AccessDeniedError, ConfigError, NotFoundError, PoolbenchError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage.s3.retries import FAILURES, status_of

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
        return ConfigError(f"{what}: {_wrong_region(error, service)}")
    if code == _SKEWED:
        return StoreError(f"{what}: the clock of this machine is wrong, and the store does not say by how much; set it")
    if status in _DENIED:
        return AccessDeniedError(f"{what}: the credentials are refused ({code or status}); {_remedy(service)}")
    if status == 501:
        return ConfigError(f"{what}: the service does not support this request ({code})")
    if isinstance(error, S3Error):
        return StoreError(f"{what}: {code}: {error.message}")
    if status:
        return StoreError(f"{what}: the service answered {status}; check {service.variable('endpoint')}")
    return StoreError(f"{what}: no answer ({error}); check {service.variable('endpoint')}")


def _remedy(service: S3Settings) -> str:
    if service.credentials == "keys":
        return f"check {service.variable('access_key')} and _SECRET_KEY, and what the bucket's policy allows"
    return f"check what {service.variable('credentials')}={service.credentials} gives, and the bucket's policy"


def _wrong_region(error: Exception, service: S3Settings) -> str:
    name, region = service.variable("region"), _region_of(error)
    where = f"in region {region}" if region else "in another region, or there is no such region"
    return f"the bucket lies {where}, but {name} is {service.region!r}; set {name} to the region of the bucket"


def _region_of(error: Exception) -> str:
    """Return the region that a response names; empty if it names none."""
    response = error.response if isinstance(error, S3Error) else None
    if response is None:
        return ""
    match = _REGION.search(response.data or b"")
    return response.headers.get("x-amz-bucket-region", "") or (match[1].decode() if match else "")
