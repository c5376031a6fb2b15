"""What is wrong with the settings of an S3 store is said when it is opened, and nothing is left half-written."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from tests.servers.meddler import Fault, Meddler

from poolbench.errors import AccessDeniedError, ConfigError, PoolbenchError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage import Artifacts, older_than, require_conditional_writes
from poolbench.storage.damage import objects_set_aside, set_object_aside
from poolbench.storage.s3 import S3Store, clock

pytestmark = pytest.mark.lane(name="brokers")
BUCKET = "poolbench-test"  # of the fixture `uri`


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
