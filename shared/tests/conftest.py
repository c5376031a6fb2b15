"""Fixtures of the tests on an S3 service: a bucket's prefix of their own, and a proxy that disturbs requests."""

import uuid
from collections.abc import Iterator

import pytest
from tests.servers.meddler import Meddler, meddling

from poolbench.settings import S3Settings

BUCKET = "poolbench-test"


@pytest.fixture
def meddler(s3_service: S3Settings) -> Iterator[Meddler]:
    with meddling(s3_service.endpoint) as proxy:
        yield proxy


@pytest.fixture
def uri() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"
