"""One behaviour suite over every object store: a folder, SeaweedFS, and in the lane `brokers` Ceph."""

import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from poolbench.errors import ConfigError, NotFoundError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage import folder, older_than, open_store, require_conditional_writes
from poolbench.storage.base import ObjectStore
from poolbench.storage.damage import objects_set_aside, set_object_aside
from poolbench.storage.folder import FolderStore
from poolbench.storage.s3 import S3Store

KEYS = {"access_key": "key", "secret_key": "secret"}
Opener = Callable[[], ObjectStore]


@pytest.fixture(
    params=["folder", "seaweed", pytest.param("ceph", marks=pytest.mark.lane(name="brokers"))],
)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens one store again and again, as separate processes would."""
    if request.param == "folder":
        return lambda: FolderStore(tmp_path / "store")
    service = request.getfixturevalue("seaweed" if request.param == "seaweed" else "s3_service")
    uri = f"s3://poolbench-test/{uuid.uuid4().hex[:8]}"
    return lambda: S3Store(uri, service)


@pytest.fixture
def store(opener: Opener) -> ObjectStore:
    return opener()


def test_objects_are_put_got_and_deleted_and_the_first_one_is_kept(store: ObjectStore) -> None:
    assert store.put("a/b/c.bin", b"\x00\x01two") is True
    assert store.get("a/b/c.bin") == b"\x00\x01two"
    assert store.exists("a/b/c.bin")
    store.put("a/b/c.bin", b"")
    assert store.get("a/b/c.bin") == b""
    with pytest.raises(NotFoundError):
        store.get("no/such")
    assert not store.exists("no/such")
    store.delete("no/such")
    store.put("gone", b"1")
    store.delete("gone")
    assert not store.exists("gone")
    assert store.put("gone", b"2", if_absent=True) is True
    assert store.put("once", b"first", if_absent=True) is True
    assert store.put("once", b"second", if_absent=True) is False
    assert store.get("once") == b"first"


def test_listing_is_by_prefix_and_in_order(store: ObjectStore) -> None:
    for path in ("x/2", "x/1", "x/deep/3", "xy/4", "z"):
        store.put(path, path.encode())
    assert [info.path for info in store.list("x/")] == ["x/1", "x/2", "x/deep/3"]
    assert [info.path for info in store.list("x")] == ["x/1", "x/2", "x/deep/3", "xy/4"]
    assert [info.path for info in store.list()] == ["x/1", "x/2", "x/deep/3", "xy/4", "z"]
    assert list(store.list("nothing/")) == []
    assert next(iter(store.list("z"))).size == 1


def test_an_object_or_all_below_a_path_is_moved(store: ObjectStore) -> None:
    for path in ("k/manifest.json", "k/1/table", "kk/other"):
        store.put(path, path.encode())
    assert store.move("k", "aside/k/now") is True
    assert [info.path for info in store.list()] == ["aside/k/now/1/table", "aside/k/now/manifest.json", "kk/other"]
    assert store.get("aside/k/now/1/table") == b"k/1/table"
    assert store.move("kk/other", "aside/other/now") is True
    assert store.get("aside/other/now") == b"kk/other"
    assert store.move("k", "aside/k/later") is False


def test_one_of_many_racing_writers_wins(opener: Opener) -> None:
    stores = [opener() for _ in range(8)]
    for round_number in range(5):
        path, barrier, won = f"race/{round_number}", threading.Barrier(len(stores)), []

        def write(number: int, path: str = path, barrier: threading.Barrier = barrier, won: list[int] = won) -> None:
            barrier.wait()
            if stores[number].put(path, str(number).encode(), if_absent=True):
                won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert stores[0].get(path) == str(won[0]).encode()


def test_a_large_object_survives(store: ObjectStore) -> None:
    data = os.urandom(1 << 20) * 70
    store.put("large", data)
    assert store.get("large") == data


@pytest.mark.parametrize("path", ["/absolute", "../outside", "a/../../b"])
def test_paths_stay_inside(store: ObjectStore, path: str) -> None:
    with pytest.raises(ConfigError, match="relative"):
        store.put(path, b"x")


def test_settings_that_are_wrong_and_services_that_are_away_are_named() -> None:
    with pytest.raises(StoreError, match="POOLBENCH_S3_ENDPOINT"):
        S3Store("s3://bucket/prefix", S3Settings(endpoint="http://127.0.0.1:1", deadline_s=0.5, **KEYS))
    with pytest.raises(ConfigError, match="POOLBENCH_S3_SECRET_KEY"):
        S3Store("s3://bucket", S3Settings(endpoint="http://h", access_key="k"))
    with pytest.raises(ConfigError, match="http://host:port"):
        S3Store("s3://bucket", S3Settings(endpoint="localhost:9000", **KEYS))
    for name in ("b", "192.168.0.1", "a..b"):
        with pytest.raises(ConfigError, match=f"object store s3://{name}/x: .*bucket name"):
            S3Store(f"s3://{name}/x", S3Settings(endpoint="http://h", **KEYS))
    with pytest.raises(ConfigError, match="unknown scheme"):
        open_store("ftp://host/folder")


def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    class Ignoring(FolderStore):
        def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
            return super().put(path, data)

    require_conditional_writes(FolderStore(tmp_path))
    with pytest.raises(ConfigError, match="has no conditional writes"):
        require_conditional_writes(Ignoring(tmp_path))


@pytest.mark.parametrize("wrong_s", [-3600.0, 3600.0])
def test_ages_are_by_the_clock_of_the_store(wrong_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file server of a shared folder dates the files, and this machine's clock is an hour off."""
    real = folder.time
    monkeypatch.setattr(folder, "time", SimpleNamespace(time=lambda: real.time() + wrong_s, monotonic=real.monotonic))
    store = FolderStore(tmp_path)
    store.put("artifacts/a.b.1/x", b"1")
    aside = set_object_aside(store, "artifacts/a.b.1")
    infos = [*store.list(), *objects_set_aside(store)]
    assert aside and len(infos) == 2
    assert all(older_than(store, -5)(info) and not older_than(store, 1800)(info) for info in infos)
