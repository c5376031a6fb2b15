"""Where the credentials of an S3 store come from, and how they are renewed."""

import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.servers.metadata import IDENTITY, Metadata, metadata

from poolbench.errors import AccessDeniedError
from poolbench.settings import S3Settings
from poolbench.storage.s3 import S3Store
from poolbench.storage.s3.clock import ServerClock
from poolbench.storage.s3.credentials import RenewedCredentials, credentials_of

OLD, NEW = ("old-key", "old-secret"), ("new-key", "new-secret")
SOURCES = ["machine", "container", "web identity"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "MINIO_", "POOLBENCH_"))]:
        monkeypatch.delenv(name)


def of(source: str, **settings: object) -> RenewedCredentials:
    return credentials_of(S3Settings(credentials=source, **settings), ServerClock())


def keys_of(credentials: RenewedCredentials) -> tuple[str, str]:
    found = credentials.retrieve()
    return found.access_key, found.secret_key


def point_to(server: Metadata, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the variables that AWS sets for a role on a machine, in a container, or of a Kubernetes service account."""
    if source == "machine":
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.address)
    elif source == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.address}/container")
    else:
        (tmp_path / "token").write_text(IDENTITY)
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/poolbench")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.address)


@pytest.mark.parametrize(
    "names", [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY")]
)
def test_the_environment_gives_them(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AccessDeniedError, match=r"POOLBENCH_S3_CREDENTIALS=environment.*set AWS_ACCESS_KEY_ID"):
        of("environment").retrieve()
    for name, value in zip(names, NEW, strict=True):
        monkeypatch.setenv(name, value)
    assert keys_of(of("environment")) == NEW


def write(file: Path, keys: tuple[str, str], profile: str = "default") -> None:
    file.write_text(f"[{profile}]\naws_access_key_id = {keys[0]}\naws_secret_access_key = {keys[1]}\n")


def test_a_file_gives_them_and_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    credentials = of("file", credentials_file=file, profile="store")
    for content in ("", "no INI file", "[store]\naws_access_key_id = only\n"):
        file.write_text(content)
        with pytest.raises(AccessDeniedError, match="POOLBENCH_S3_CREDENTIALS=file gives no credentials"):
            credentials.retrieve()
    write(file, OLD, "store")
    assert keys_of(credentials) == OLD
    refused = credentials.retrieve()
    assert credentials.renew(refused) is False  # nothing new: no second try
    write(file, NEW, "store")
    assert keys_of(credentials) == OLD
    assert credentials.renew(refused) is True and keys_of(credentials) == NEW
    assert credentials.renew(refused) is True  # another thread was refused at the same time


@pytest.mark.parametrize("source", SOURCES)
def test_a_role_gives_them_and_they_are_renewed_before_they_expire(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with metadata(OLD, NEW, lifetime_s=3600) as server:
        point_to(server, source, monkeypatch, tmp_path)
        credentials = of("role")
        assert keys_of(credentials) == OLD == keys_of(credentials)
        assert server.num_given == 1
        credentials._clock.correction_s = 3600 - 30  # the clock of the store decides when they expire
        assert keys_of(credentials) == NEW
        server.down = True
        assert keys_of(credentials) == NEW  # still valid for half a minute
        credentials._clock.correction_s = 3600 + 30
        with pytest.raises(AccessDeniedError, match="attach a role") as refused:
            credentials.retrieve()
        assert IDENTITY not in str(refused.value)
        server.down = False
        assert keys_of(credentials) == NEW


@pytest.mark.parametrize("source", SOURCES)
def test_no_role_is_a_clear_error(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with metadata(OLD) as server:
        point_to(server, source, monkeypatch, tmp_path)
    with pytest.raises(AccessDeniedError, match="POOLBENCH_S3_CREDENTIALS=role gives no credentials") as refused:
        of("role").retrieve()
    assert IDENTITY not in str(refused.value)


@pytest.mark.lane(name="brokers")
@pytest.mark.parametrize("source", SOURCES)
def test_rotated_credentials_of_a_role_reach_a_real_store(
    source: str, s3_service: S3Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = s3_service.access_key.get_secret_value(), s3_service.secret_key.get_secret_value()
    service = S3Settings(endpoint=s3_service.endpoint, credentials="role")
    uri = f"s3://poolbench-test/{uuid.uuid4().hex[:8]}"
    with metadata(OLD, good, lifetime_s=3600) as server:
        point_to(server, source, monkeypatch, tmp_path)
        store = S3Store(uri, service)  # the first pair is refused
        assert store.put("a", b"1", if_absent=True) and server.num_given == 2
        server.keys = [OLD]
        with pytest.raises(AccessDeniedError, match="POOLBENCH_S3_CREDENTIALS=role gives"):
            store._client._renewed._current = None
            store.get("a")
        server.keys = [good]
        assert store.get("a") == b"1"


def test_credentials_of_a_role_have_an_end() -> None:
    """minio keeps times without a zone; they are UTC."""
    with metadata(OLD, lifetime_s=100) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.address)
        credentials = of("role")
        credentials.retrieve()
        left = credentials._left()
        assert timedelta(seconds=60) < left <= timedelta(seconds=100), datetime.now(UTC)
