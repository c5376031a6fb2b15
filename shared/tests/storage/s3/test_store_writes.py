"""Writes to a real S3 service whose responses are lost, refused or shortened on the way."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from minio import Minio
from tests.servers.meddler import Fault, Meddler, meddling

from poolbench.errors import ConfigError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage import Artifacts, require_conditional_writes
from poolbench.storage.s3 import S3Store

pytestmark = pytest.mark.lane(name="brokers")
KEY = "prober.probe.0001"
BUCKET = "poolbench-test"  # of the fixture `uri`


def opened(uri: str, service: S3Settings, meddler: Meddler | None = None, **options: Any) -> S3Store:
    endpoint = {"endpoint": meddler.endpoint} if meddler else {}
    store = S3Store(uri, service.model_copy(update={**endpoint, **options.pop("settings", {})}), **options)
    if meddler:
        meddler.seen.clear()
    return store


def attempts_left(service: S3Settings) -> list[str]:
    """Return the uploads in parts that were neither completed nor aborted."""
    host = service.endpoint.removeprefix("http://")
    keys = service.access_key.get_secret_value(), service.secret_key.get_secret_value()
    client = Minio(host, *keys, secure=False, region=service.region)
    return [str(one.object_name) for one in client._list_multipart_uploads(BUCKET).uploads]


def test_a_lost_response_to_our_own_write_is_a_win(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    """The service stored the object, and the retry gets 412: the object is ours."""
    store = opened(uri, s3_service, meddler)
    meddler.faults = [Fault("PUT")]
    assert store.put("once", b"same bytes", if_absent=True) is True
    assert [method for method, _ in meddler.seen] == ["PUT", "PUT", "HEAD"]
    assert store.put("once", b"same bytes", if_absent=True) is False


def test_a_lost_response_to_a_write_that_lost_is_no_win(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    """Another writer was first, with the same bytes. Bytes alone would not show who won."""
    store = opened(uri, s3_service, meddler)
    assert opened(uri, s3_service).put("once", b"same bytes", if_absent=True)
    meddler.faults = [Fault("PUT")]
    assert store.put("once", b"same bytes", if_absent=True) is False


def test_a_write_that_never_arrived_is_sent_again(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    store = opened(uri, s3_service, meddler)
    meddler.faults = [Fault("PUT", forward=False), Fault("PUT", forward=False, status=503)]
    assert store.put("once", b"1", if_absent=True) is True
    assert meddler.count("PUT") == 3


def test_a_conflict_is_tried_again_until_it_is_decided(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    store = opened(uri, s3_service, meddler)
    meddler.faults = [Fault("PUT", forward=False, status=409)] * 3
    assert store.put("won", b"1", if_absent=True) is True
    meddler.faults = [Fault("PUT", forward=False, status=409)] * 2
    assert store.put("won", b"2", if_absent=True) is False


def test_a_commit_whose_response_is_lost_is_ours(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    artifacts = Artifacts(opened(uri, s3_service, meddler))
    meddler.faults = [Fault("PUT", "manifest.json")]
    manifest = artifacts.write_table(KEY, pa.table({"x": [1, 2]}))
    assert artifacts.manifest(KEY) == manifest
    assert artifacts.read_table(KEY)["x"].to_pylist() == [1, 2]


def test_racing_commits_with_lost_responses_have_one_winner(s3_service: S3Settings, uri: str) -> None:
    with meddling(s3_service.endpoint) as meddler:
        stores = [opened(uri, s3_service, meddler) for _ in range(6)]
        meddler.faults = [Fault("PUT", "once", status=None) for _ in range(4)]
        barrier = threading.Barrier(len(stores))

        def write(store: S3Store) -> bool:
            barrier.wait()
            return store.put("once", b"same bytes", if_absent=True)

        with ThreadPoolExecutor(len(stores)) as pool:
            assert sum(pool.map(write, stores)) == 1


def test_a_small_artifact_costs_two_requests(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    artifacts = Artifacts(opened(uri, s3_service, meddler))
    artifacts.write_table(KEY, pa.table({"x": [1]}))
    assert [method for method, _ in meddler.seen] == ["PUT", "PUT"]


def test_a_busy_or_broken_service_is_asked_again(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    store = opened(uri, s3_service, meddler)
    store.put("a", b"0123456789")
    meddler.faults = [
        Fault("GET", forward=False, status=503, headers={"Retry-After": "1"}),
        Fault("GET", forward=False, status=500),
        Fault("GET", keep=4),
        Fault("HEAD", forward=False, status=503),
        Fault("DELETE"),
    ]
    assert store.get("a") == b"0123456789"
    assert store.exists("a")
    store.delete("a")
    assert not store.exists("a") and not meddler.faults


def test_a_service_that_stays_down_is_an_error_after_the_deadline(
    s3_service: S3Settings, meddler: Meddler, uri: str
) -> None:
    store = opened(uri, s3_service, meddler, settings={"deadline_s": 0.5})
    meddler.faults = [Fault("GET", forward=False, status=503)] * 1000
    with pytest.raises(StoreError, match="SlowDown"):
        store.get("a")
    assert 1 < meddler.count("GET") < 1000


def test_an_upload_in_parts_survives_lost_responses(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    store = opened(uri, s3_service, meddler, part_bytes=5 << 20)
    data = os.urandom(1 << 20) * 31
    meddler.faults = [
        Fault("PUT", "partNumber=2&", forward=False, status=500),
        Fault("PUT", "partNumber=3&"),
        Fault("POST", "uploadId="),  # completed, and the response is lost
    ]
    store.put("large", data)
    assert store.get("large") == data and not meddler.faults
    assert sum("partNumber" in address for _, address in meddler.seen) == 7 + 2


def test_a_failed_upload_leaves_no_parts(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    store = opened(uri, s3_service, meddler, part_bytes=5 << 20)
    data = bytes(31 << 20)
    meddler.faults = [Fault("PUT", "partNumber=4&", forward=False, status=403)]
    with pytest.raises(StoreError, match="refused"):
        store.put("refused", data)
    meddler.faults = [Fault("POST", "uploadId=", status=200)]  # S3 may send an error in a response of status 200
    meddler.faults += [Fault("HEAD", forward=False, status=404)]
    with pytest.raises(StoreError, match="could not be put together"):
        store.put("unfinished", data)
    assert not store.exists("refused") and attempts_left(s3_service) == []


def test_an_interrupted_upload_leaves_no_parts(
    s3_service: S3Settings, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("poolbench.storage.s3.store.wait", interrupted)
    store = opened(uri, s3_service, part_bytes=5 << 20)
    with pytest.raises(KeyboardInterrupt):
        store.put("stopped", bytes(31 << 20))
    assert not store.exists("stopped") and attempts_left(s3_service) == []


def test_a_store_without_conditional_writes_is_refused(s3_service: S3Settings, meddler: Meddler, uri: str) -> None:
    store = opened(uri, s3_service, meddler)
    require_conditional_writes(store)
    assert meddler.count("PUT") == 2
    meddler.seen.clear()
    require_conditional_writes(store)
    assert [method for method, _ in meddler.seen] == ["PUT", "HEAD"]
    meddler.faults = [Fault("PUT", status=200, body=b" ")] * 2  # as a service that ignores the header
    with pytest.raises(ConfigError, match=r"no conditional writes.*If-None-Match"):
        require_conditional_writes(store)
    meddler.faults = [Fault("PUT", forward=False, status=501)]
    with pytest.raises(ConfigError, match="does not support"):
        require_conditional_writes(store)
