"""Where a cluster is found, and how it is said that there is none."""

import json
from pathlib import Path

import pytest

from poolbench.errors import ConfigError, UnknownNameError
from poolbench.settings import ClusterSettings
from poolbench.settings.access import CLUSTER_FILE
from poolbench.worker.service import load_service


def _record(state: Path) -> dict[str, str]:
    (state / "token").write_text("from-file\n")
    record = {
        "store": "/data/store",
        "broker": "filesystem:///data/queue",
        "http": "http://127.0.0.1:8000",
        "token_file": str(state / "token"),
    }
    (state / CLUSTER_FILE).write_text(json.dumps(record))
    return record


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))


def test_the_environment_comes_before_the_recorded_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = _record(tmp_path)
    found = ClusterSettings.load()
    assert (found.store_uri, found.broker_url, found.http_address) == (
        record["store"],
        record["broker"],
        record["http"],
    )
    assert found.token == "from-file"
    assert "from-file" not in repr(found)
    _record(tmp_path)
    monkeypatch.setenv("POOLBENCH_STORE", "s3://bucket/x")
    monkeypatch.setenv("POOLBENCH_TOKEN", "given")
    found = ClusterSettings.load()
    assert (found.store_uri, found.token, found.broker_url) == ("s3://bucket/x", "given", "filesystem:///data/queue")


@pytest.mark.parametrize("text", ["", "{half of a rec"])
def test_no_cluster_is_said_with_what_to_do(tmp_path: Path, text: str) -> None:
    if text:
        (tmp_path / CLUSTER_FILE).write_text(text)
    with pytest.raises(ConfigError, match="make cluster-up"):
        ClusterSettings.load()


def test_an_unknown_service_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean prober"):
        load_service("probre")
