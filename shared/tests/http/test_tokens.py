"""Tokens are replaced while a gate serves: only the old one is valid, then both, then only the new one."""

import asyncio
import json
import logging
from pathlib import Path

import pytest
from tests.servers.door import Door, request, serving
from tests.waiting import wait_until

from poolbench.errors import ConfigError
from poolbench.http import tokens as tokens_module
from poolbench.http.tokens import Tokens

OLD, NEW = "the-first-token", "the-second-token"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are read again at each check."""
    monkeypatch.setattr(tokens_module, "REREAD_S", 0.0)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a local cluster with its token."""
    (tmp_path / "token").write_text(OLD)
    recorded = {"store": str(tmp_path / "store"), "broker": "filesystem:///queue", "token_file": f"{tmp_path}/token"}
    (tmp_path / "cluster.json").write_text(json.dumps(recorded))
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mounted folder of secrets."""
    (tmp_path / "POOLBENCH_TOKEN").write_text(OLD)
    places = {"SECRETS": str(tmp_path), "STATE": str(tmp_path / "none")}
    for name, value in {**places, "STORE": "s3://bucket", "BROKER": "redis://redis"}.items():
        monkeypatch.setenv(f"POOLBENCH_{name}", value)
    return tmp_path


def status(door: Door, token: str) -> int:
    return door.ask(request("/prober/probe", method="POST", body=b"{}", token=token)).status


def replace_while_serving(token: Path, next_token: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the old token is valid, then both, then only the new one; the log names neither."""
    caplog.set_level(logging.INFO)
    with serving(Tokens.of_cluster()) as door:
        assert [status(door, OLD), status(door, NEW)] == [200, 401]
        next_token.write_text(NEW)
        assert [status(door, OLD), status(door, NEW)] == [200, 200]
        next_token.rename(token)
        assert [status(door, OLD), status(door, NEW)] == [401, 200]
    assert "valid tokens: 2" in caplog.text and "valid tokens: 1" in caplog.text
    assert OLD not in caplog.text and NEW not in caplog.text


def test_the_token_of_a_local_cluster_is_replaced(state: Path, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    replace_while_serving(state / "token", state / "token_next", caplog)


def test_a_token_among_the_secrets_is_replaced(secrets: Path, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    replace_while_serving(secrets / "POOLBENCH_TOKEN", secrets / "POOLBENCH_TOKEN_NEXT", caplog)


def test_a_token_in_a_volume_of_kubernetes_is_replaced(secrets: Path, soon: None) -> None:
    """Its files are links into a folder that is a link, which Kubernetes changes over when a Secret changes."""
    token = secrets / "POOLBENCH_TOKEN"
    token.unlink()

    def write(version: str, **values: str) -> None:
        (secrets / version).mkdir()
        for name, value in values.items():
            (secrets / version / name).write_text(value)
        (secrets / "..tmp").symlink_to(version)
        (secrets / "..tmp").rename(secrets / "..data")
        for name in values:
            if not (secrets / name).is_symlink():
                (secrets / name).symlink_to(Path("..data") / name)

    write("..1", POOLBENCH_TOKEN=OLD)
    with serving(Tokens.of_cluster()) as door:
        assert [status(door, OLD), status(door, NEW)] == [200, 401]
        write("..2", POOLBENCH_TOKEN=OLD, POOLBENCH_TOKEN_NEXT=NEW)
        assert [status(door, OLD), status(door, NEW)] == [200, 200]
        write("..3", POOLBENCH_TOKEN=NEW)
        assert [status(door, OLD), status(door, NEW)] == [401, 200]


def test_the_health_desk_sends_the_token_that_is_valid_now(state: Path, soon: None) -> None:
    with serving(Tokens.of_cluster()) as door:
        (state / "token").write_text(NEW)
        assert door.ask(request("/prober/health", token=NEW)).status == 200
        wait_until(lambda: door.behind.seen[-1]["headers"]["authorization"] == f"Bearer {NEW}")


def test_a_file_that_cannot_be_read_changes_nothing(
    secrets: Path, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty file, as a careless editor leaves it for a moment, and a name that is no setting."""
    tokens = Tokens.of_cluster()

    def accepted() -> tuple[bool, bool]:
        asyncio.run(tokens.refresh())
        return tokens.accept(OLD.encode()), tokens.accept(NEW.encode())

    (secrets / "POOLBENCH_TOKEN").write_text("")
    (secrets / "POOLBENCH_TOKEN_NEXT").write_text(NEW)
    assert accepted() == (True, False)
    (secrets / "POOLBENCH_TOKEN").write_text(NEW)
    (secrets / "POOLBENCH_TOKEN_NEXT").rename(secrets / "POOLBENCH_TOKEN_NXT")
    for _ in range(3):
        assert accepted() == (True, False)
    assert caplog.text.count("POOLBENCH_TOKEN_NXT") == 1, "the same problem is logged once"
    (secrets / "POOLBENCH_TOKEN_NXT").unlink()
    assert accepted() == (False, True)
    assert OLD not in caplog.text and NEW not in caplog.text


def test_no_token_is_no_start() -> None:
    with pytest.raises(ConfigError, match="POOLBENCH_TOKEN is empty"):
        Tokens.fixed("")
    with pytest.raises(ConfigError, match="POOLBENCH_TOKEN is empty"):
        Tokens(lambda: ("", NEW))
    assert Tokens(lambda: (OLD, OLD)).valid() == (OLD,)
