"""What clients see of a cluster: its records, its queues, and the mark that ends a run."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from poolbench.contracts.wire import RUN_CANCEL, RUN_STATE, run_path
from poolbench.http.api import build_api
from poolbench.library.concepts import Library
from poolbench.storage.folder import FolderStore
from poolbench_pooler import cluster
from poolbench_pooler.service import PoolerService


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    settings = {"STORE": tmp_path / "store", "STATE": tmp_path, "BROKER": f"filesystem://{tmp_path}/queue"}
    for name, value in settings.items():
        monkeypatch.setenv(f"POOLBENCH_{name}", str(value))
    store = FolderStore(tmp_path / "store")
    store.put(run_path("r1", RUN_STATE), b'{"state": "running"}')
    return store


@pytest.fixture
def client(store: FolderStore) -> TestClient:
    api = build_api(PoolerService(lambda: Library(store)), "token")
    return TestClient(api, headers={"Authorization": "Bearer token"})


def test_records_are_listed_read_and_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    (listed,) = client.get("/records", params={"prefix": "runs/"}).json()["records"]
    assert (listed["path"], listed["size"]) == (run_path("r1", RUN_STATE), len(b'{"state": "running"}'))
    assert client.get("/record", params={"path": listed["path"]}).json() == {"state": "running"}
    monkeypatch.setattr(cluster, "MAX_RECORD_BYTES", 3)
    assert client.get("/record", params={"path": listed["path"]}).status_code == 413
    assert client.get("/record", params={"path": "artifacts/x"}).status_code == 422, "artifacts are no records"


def test_a_run_is_asked_to_stop_by_its_mark(client: TestClient, store: FolderStore) -> None:
    assert client.post("/cancel_run", json={"run": "r2"}).status_code == 404
    assert client.post("/cancel_run", json={"run": "r1"}).json() == {"cancelled": "r1"}
    assert store.exists(run_path("r1", RUN_CANCEL)) and not store.exists(run_path("r2", RUN_CANCEL))


def test_queues_of_all_services_and_dead_letters_are_shown(client: TestClient) -> None:
    state = client.get("/cluster").json()
    assert {queue["waiting"] + queue["dead_letters"] for queue in state["queues"]} == {0} and state["damaged"] == ""
    assert client.get("/dead_letters").json() == {"dead_letters": []}
    assert client.get(f"/dead_letters/{'0' * 32}").status_code == 404
