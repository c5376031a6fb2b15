"""A real S3 service whose responses are lost, refused or shortened on the way, and settings that are wrong."""

import os
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from minio import Minio
from tests.servers.meddler import Fault, Meddler, meddling

from poolbench.errors import AccessDeniedError, ConfigError, PoolbenchError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage import Artifacts, older_than, require_conditional_writes
from poolbench.storage.damage import objects_set_aside, set_object_aside
from poolbench.storage.s3 import S3Store, clock

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


def shifted(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of this machine wrong, as far as requests and ages can see."""
    real = clock.time
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: real.time() + seconds, monotonic=real.monotonic))


@pytest.mark.parametrize("settings", [{"secret_key": "wrong-secret"}, {"access_key": "wrong-key"}])
def test_wrong_credentials_are_refused_at_the_start(settings: dict[str, str], s3_service: S3Settings, uri: str) -> None:
    wrong = S3Settings(**{**s3_service.model_dump(), **settings})
    with pytest.raises(AccessDeniedError, match=r"credentials are refused .*POOLBENCH_S3_ACCESS_KEY") as refused:
        S3Store(uri, wrong)
    assert "wrong" not in str(refused.value)
    with pytest.raises(AccessDeniedError, match="credentials are refused"):
        require_conditional_writes(S3Store(uri, wrong, existing=True))


def test_a_bucket_that_the_service_cannot_create_is_named(s3_service: S3Settings) -> None:
    with pytest.raises(ConfigError, match=r"object store s3://Upper_case/x: .*bucket name"):
        S3Store("s3://Upper_case/x", s3_service)


def test_another_region_is_named(s3_service: S3Settings, meddler: Meddler) -> None:
    """AWS names the region of the bucket; Ceph refuses to create a bucket in a region that it does not know."""
    elsewhere = s3_service.model_copy(update={"region": "eu-west-1"})
    with pytest.raises(ConfigError, match=r"POOLBENCH_S3_REGION is 'eu-west-1'"):
        S3Store(f"s3://missing-{uuid.uuid4().hex[:8]}", elsewhere)
    proxied = s3_service.model_copy(update={"endpoint": meddler.endpoint})
    meddler.faults = [Fault("HEAD", forward=False, status=301, headers={"x-amz-bucket-region": "eu-central-1"})]
    with pytest.raises(ConfigError, match="in region eu-central-1, but POOLBENCH_S3_REGION is 'us-east-1'"):
        S3Store(f"s3://{BUCKET}", proxied)
    store = S3Store(f"s3://{BUCKET}", proxied)
    body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>x</Message><Region>eu-north-1</Region></Error>"
    meddler.faults = [Fault("PUT", forward=False, status=400, body=body)]
    with pytest.raises(ConfigError, match="in region eu-north-1"):
        store.put("a", b"b")


def test_an_answer_that_is_no_s3_is_a_clear_error(s3_service: S3Settings, meddler: Meddler) -> None:
    proxied = s3_service.model_copy(update={"endpoint": meddler.endpoint, "deadline_s": 0.1})
    store = S3Store(f"s3://{BUCKET}", proxied)
    meddler.faults = [Fault("PUT", forward=False, status=502, headers={"Content-Type": "text/html"})] * 99
    with pytest.raises(StoreError, match="answered 502; check POOLBENCH_S3_ENDPOINT"):
        store.put("a", b"b")


@pytest.mark.parametrize("hours", [-1.0, 1.0])
def test_a_clock_that_is_an_hour_off_harms_nothing(
    hours: float, s3_service: S3Settings, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shifted(monkeypatch, hours * 3600)
    store = S3Store(uri, s3_service)
    require_conditional_writes(store)
    assert re.search(rf"3[56]\d\d s {'ahead of' if hours > 0 else 'behind'} that", caplog.text)
    artifacts = Artifacts(store)
    artifacts.write("a.b.1", {"x": b"123"})
    assert artifacts.read("a.b.1", "x") == b"123"
    store.put("large", bytes(20 << 20))
    ages = [older_than(store, seconds) for seconds in (0, 1800)]
    for info in store.list():
        assert [is_old(info) for is_old in ages] == [True, False]
    aside = set_object_aside(store, "artifacts/a.b.1")
    assert aside and all(older_than(store, 0)(info) for info in objects_set_aside(store))
    assert not any(older_than(store, 1800)(info) for info in objects_set_aside(store))
    assert caplog.text.count("the clock of this machine") == 1


def test_a_clock_that_changes_meanwhile_is_corrected_again(
    s3_service: S3Settings, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(uri, s3_service)
    for seconds in (3600, -7200, 3600):
        shifted(monkeypatch, seconds)
        store.put("a", str(seconds).encode())
        assert store.get("a") == str(seconds).encode()


def test_a_clock_that_cannot_be_corrected_is_a_clear_error(
    s3_service: S3Settings, meddler: Meddler, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied = s3_service.model_copy(update={"endpoint": meddler.endpoint})
    store = S3Store(uri, proxied)
    body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>x</Message></Error>"
    now = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    for headers in ({}, {"Date": "soon"}, {"Date": now}):
        meddler.faults = [Fault("PUT", forward=False, status=403, headers=headers, body=body)] * 2
        with pytest.raises(PoolbenchError, match="clock of this machine is wrong"):
            store.put("a", b"b")
        assert not store.exists("a")
        store._client.clock.correction_s = 0.0
        meddler.faults.clear()
