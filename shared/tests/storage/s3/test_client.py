"""The S3 client without a server: when it tries again, how it sends, and that minio is as the client expects."""

import inspect
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from minio import Minio
from minio.error import InvalidResponseError, S3Error, ServerError

from poolbench.storage.s3 import retries
from poolbench.storage.s3.client import Client
from poolbench.storage.s3.clock import Connections, ServerClock
from poolbench.storage.s3.retries import retried


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s, self.pauses = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(retries, "time", clock)
    return clock


def answer(status: int, code: str = "", headers: dict[str, str] | None = None) -> S3Error:
    response: Any = SimpleNamespace(status=status, headers=headers or {}, data=b"")
    return S3Error(response, code, None, None, None, None)


def failing(*errors: Exception) -> Any:
    left = list(errors)

    def send() -> str:
        if left:
            raise left.pop(0)
        return "sent"

    return send


TRANSIENT = [
    answer(503, "SlowDown"),
    answer(500, "InternalError"),
    answer(429, "TooManyRequests"),
    answer(400, "RequestTimeout"),
    ServerError("", 502),
    InvalidResponseError(504, "text/html", "<html>"),
    urllib3.exceptions.ProtocolError("reset"),
    urllib3.exceptions.ReadTimeoutError(None, None, "slow"),  # type: ignore[arg-type]
    ConnectionResetError(),
]
FINAL = [
    answer(403, "AccessDenied"),
    answer(404, "NoSuchKey"),
    answer(409, "BucketAlreadyOwnedByYou"),
    answer(412, "PreconditionFailed"),
    answer(501, "NotImplemented"),
    InvalidResponseError(404, "text/html", "<html>"),
    urllib3.exceptions.SSLError(ssl.SSLCertVerificationError("self-signed")),
    ValueError("a bug"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_what_may_pass_is_tried_again(error: Exception, time: Time) -> None:
    assert retried(failing(error, error, error), 60.0) == "sent"
    assert len(time.pauses) == 3


@pytest.mark.parametrize("error", FINAL, ids=repr)
def test_what_will_not_pass_is_raised_at_once(error: Exception, time: Time) -> None:
    with pytest.raises(type(error)):
        retried(failing(error), 60.0)
    assert time.pauses == []


def test_pauses_have_full_jitter_and_end_with_the_deadline(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds double from .05 s to 5 s; a pause is drawn uniformly from 0 to its bound."""
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    monkeypatch.setattr(retries, "random", SimpleNamespace(uniform=uniform))
    with pytest.raises(S3Error, match="SlowDown"):
        retried(failing(*[answer(503, "SlowDown")] * 100), 30.0)
    assert [high for _, high in drawn[:9]] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert {low for low, _ in drawn} == {0.0}
    assert time.now_s <= 30.0 < time.now_s + 5.0


def test_a_server_that_asks_for_time_gets_it_and_a_conflict_is_tried_again(time: Time) -> None:
    retried(failing(answer(503, "SlowDown", {"retry-after": "7"})), 60.0)
    assert time.pauses == [7.0]
    with pytest.raises(S3Error):
        retried(failing(answer(503, "SlowDown", {"retry-after": "700"})), 60.0)
    retried(failing(answer(503, "SlowDown", {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})), 60.0)
    assert retried(failing(answer(409, "Conflict")), 60.0, conditional=True) == "sent"


def test_the_methods_of_minio_that_are_replaced_are_as_they_were() -> None:
    """All requests go through `_execute`, and all dates through `_build_headers`."""
    for name in ("_execute", "_build_headers"):
        ours, theirs = inspect.signature(getattr(Client, name)), inspect.signature(getattr(Minio, name))
        assert list(ours.parameters) == list(theirs.parameters), name
    source = inspect.getsource(Minio)
    # Twice in `_execute`; once for a region, which we always set; once in `make_bucket`, which the store retries.
    assert source.count("self._url_open(") == 4
    assert source.count("self._build_headers(") == 1
    for name in ("_create_multipart_upload", "_upload_part", "_complete_multipart_upload", "_abort_multipart_upload"):
        assert "_execute" in inspect.getsource(getattr(Minio, name)) or name == "_upload_part"


def test_a_large_body_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout of a socket bounds one `send`, so one for all of a large body would need a fast network."""
    sent: list[Any] = []

    def urlopen(self: object, method: str, url: str, redirect: bool = True, **options: Any) -> Any:
        sent.append(options["body"])
        return SimpleNamespace(headers={"date": "Wed, 21 Oct 2026 07:28:00 GMT"})

    monkeypatch.setattr(urllib3.PoolManager, "urlopen", urlopen)
    clock, data = ServerClock(), bytes(range(256)) * 5000
    Connections(clock).urlopen("PUT", "http://host/", body=memoryview(data))
    Connections(clock).urlopen("PUT", "http://host/", body=b"small")
    assert b"".join(sent[0]) == data and max(map(len, sent[0])) == 1 << 18
    assert sent[1] == b"small"
    assert clock.now_s() is not None
