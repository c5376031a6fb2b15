"""`bench/store.py` at its smallest size, on the S3 service of the tests."""

from pathlib import Path

import pytest
from bench.tests.benches import smallest

from poolbench.settings import S3Settings

pytestmark = pytest.mark.lane(name="brokers")


def test_the_benchmark_writes_its_ratios(s3_service: S3Settings, tmp_path: Path) -> None:
    keys = {"access_key": s3_service.access_key, "secret_key": s3_service.secret_key}
    place = {"endpoint": s3_service.endpoint} | {name: key.get_secret_value() for name, key in keys.items()}
    report = smallest("store", tmp_path, **{S3Settings.variable(name): value for name, value in place.items()})
    assert report["ratios"]["store.requests_per_commit"] == 2
