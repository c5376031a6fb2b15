"""Artifacts and folders: one winner, damage is noticed, a full disk is said, a folder may be moved."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import PATIENCE_S

from poolbench.errors import DamagedError, IntegrityError, NotFoundError, StoreError
from poolbench.storage import Artifacts, Manifest, folder
from poolbench.storage.artifacts import seal, table_from_bytes, table_to_bytes, unseal
from poolbench.storage.damage import set_aside_if_damaged
from poolbench.storage.folder import FolderStore

KEY, SECRET = "prober.probe.0001", "restricted.prober.probe.0001"


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


def _files(artifacts: Artifacts, prefix: str = "") -> list[str]:
    return [info.path for info in artifacts.store.list(prefix)]


def test_what_was_committed_is_read_with_its_manifest(artifacts: Artifacts) -> None:
    artifacts.write_table(KEY, pa.table({"x": [1, 2]}), meta={"width": 4}, producer={"host": "here"})
    assert artifacts.read_table(KEY)["x"].to_pylist() == [1, 2]
    manifest = artifacts.manifest(KEY)
    assert (manifest.num_rows, manifest.meta, manifest.producer["host"]) == (2, {"width": 4}, "here")


def test_a_table_in_shards_is_read_in_their_order(artifacts: Artifacts) -> None:
    writer = artifacts.writer(KEY)
    for number in range(11):
        writer.add_shard(pa.table({"x": [number, -number]}))
    assert writer.commit() and artifacts.manifest(KEY).num_rows == 22
    assert artifacts.read_table(KEY)["x"].to_pylist()[::2] == list(range(11))
    artifacts.write("a.file", {"a": b"payload"})
    with pytest.raises(NotFoundError, match=r"has no file 'table\.arrow'; it has a"):
        artifacts.read_table("a.file")


def test_all_objects_are_listed_with_the_key_of_their_artifact(artifacts: Artifacts) -> None:
    other = "scorer.score.0001"
    for key in (KEY, other):
        artifacts.write(key, {"a": b"payload"})
    assert Counter(key for key, _ in artifacts.objects()) == {KEY: 2, other: 2}  # the payload and the manifest
    assert all(info.path.startswith(f"artifacts/{key}/") for key, info in artifacts.objects())


def test_manifests_of_earlier_runs_can_be_read(artifacts: Artifacts) -> None:
    """Who raises the version makes all that was stored unreadable."""
    assert artifacts.write(KEY, {"a": b"payload"}).schema_version == 2


def test_a_second_attempt_adopts_the_first(artifacts: Artifacts) -> None:
    first = artifacts.write(KEY, {"a": b"first"})
    assert artifacts.write(KEY, {"a": b"second"}) == first
    assert artifacts.read(KEY, "a") == b"first"


def test_racing_writers_have_one_winner_and_leave_nothing_behind(artifacts: Artifacts) -> None:
    barrier, manifests = threading.Barrier(6), []

    def write(number: int) -> None:
        own = Artifacts(FolderStore(Path(artifacts.store.uri)))
        own.exists = lambda key: False  # type: ignore[method-assign]  # both looked before either had written
        barrier.wait()
        manifests.append(own.write(KEY, {"a": str(number).encode()}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({manifest.attempt for manifest in manifests}) == 1
    assert len(_files(artifacts)) == 2  # the winner's payload and the manifest
    assert artifacts.read(KEY, "a").isdigit()


def test_damage_is_noticed(artifacts: Artifacts) -> None:
    entry = artifacts.write(KEY, {"a": b"payload"}).files["a"]
    for read in (artifacts.verify, lambda key: artifacts.read(key, "a")):
        for data in (b"pay1oad", b"pay2oad"):  # their hashes are above and below the right one
            artifacts.store.put(entry.path, data)
            with pytest.raises(IntegrityError, match=f"artifact {KEY}: a does not match.*poolbench-driver run"):
                read(KEY)
        for data in (b"pay", b"payload, and more"):
            artifacts.store.put(entry.path, data)
            with pytest.raises(IntegrityError, match=f"a has {len(data)} bytes, its manifest says 7"):
                read(KEY)
    artifacts.store.delete(entry.path)
    with pytest.raises(IntegrityError, match="is gone"):
        artifacts.read(KEY, "a")
    artifacts.store.put(f"artifacts/{KEY}/manifest.json", b"{")
    with pytest.raises(IntegrityError, match="manifest is damaged"):
        artifacts.manifest(KEY)
    assert not IntegrityError("").retryable


@pytest.mark.parametrize(
    "change",
    [
        {"num_rows": 10**9}, {"schema_version": 99}, {"files": {}}, {"key": "x"}, {"meta": {"a": "b"}}, {"more": 1},
        {"files": {"a": {"path": "../../../../etc/passwd", "num_bytes": 7, "sha256": "0" * 64}}},
    ],
)  # fmt: skip
def test_an_edited_manifest_is_noticed(artifacts: Artifacts, change: dict[str, Any]) -> None:
    artifacts.write(KEY, {"a": b"payload"})
    place = Path(artifacts.store.uri) / f"artifacts/{KEY}/manifest.json"
    place.write_text(json.dumps(json.loads(place.read_bytes()) | change))
    with pytest.raises(DamagedError, match="manifest is damaged"):
        artifacts.read(KEY, "a")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema_version": 1}, "its manifest has version 1"),
        ({"schema_version": 99}, "its manifest has version 99"),
        ({"key": "a.1"}, "manifest is damaged"),
        ({"key": "z.1"}, "manifest is damaged"),
        ({"files": {"a": {"path": "artifacts/other/a", "num_bytes": 7, "sha256": "0" * 64}}}, "manifest is damaged"),
    ],
)
def test_a_manifest_whose_checksum_is_right_may_be_of_another_artifact(
    artifacts: Artifacts, change: dict[str, Any], told: str
) -> None:
    artifacts.write(KEY, {"a": b"payload"})
    place = Path(artifacts.store.uri) / f"artifacts/{KEY}/manifest.json"
    place.write_bytes(seal(json.dumps(unseal(place.read_bytes()) | change)))
    with pytest.raises(DamagedError, match=told):
        artifacts.read(KEY, "a")


def test_a_sealed_object_says_what_is_wrong_with_its_checksum() -> None:
    with pytest.raises(ValueError, match="missing"):
        unseal(b"{}")
    with pytest.raises(ValueError, match="does not match"):
        unseal(seal("{}").replace(b"{", b'{"x": 1, ', 1))
    fields = {"b": 2, "a": 1}
    right = hashlib.sha256(b'{"a":1,"b":2}').hexdigest()
    assert json.loads(seal(json.dumps(fields))) == {**fields, "checksum": right}


def test_only_a_large_artifact_is_looked_up_before_it_is_written(
    artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is not sent again; for up to 1 MiB the look would be one request in three."""
    large = {"a": bytes(2**20 + 1)}
    first = artifacts.write(KEY, large)
    with monkeypatch.context() as patch:
        patch.setattr(artifacts.store, "put", lambda path, data, **options: pytest.fail(f"{path} was written"))
        assert artifacts.write(KEY, large) == first
    monkeypatch.setattr(artifacts.store, "exists", lambda path: pytest.fail(f"{path} was looked up"))
    for size in (1, 2**20):
        artifacts.write(f"a.{size}", {"a": bytes(size)})


def test_texts_of_a_table_are_checked() -> None:
    """Arrow trusts offsets and bytes; a wrong one could end the process."""
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xff\xfe")
    )
    with pytest.raises(pa.ArrowInvalid):
        table_from_bytes(table_to_bytes(pa.table({"text": broken})))


def test_a_link_a_pipe_or_a_folder_is_no_object(artifacts: Artifacts) -> None:
    entry = artifacts.write(KEY, {"a": b"payload"}).files["a"]
    file = Path(artifacts.store.uri) / entry.path
    kept = file.with_name("kept")
    file.rename(kept)
    for make in (lambda: os.mkfifo(file), file.mkdir, lambda: file.symlink_to(kept), lambda: file.symlink_to(file)):
        make()
        with pytest.raises(DamagedError, match="is gone"):
            artifacts.read(KEY, "a")
        assert not artifacts.store.exists(entry.path)
        assert entry.path not in _files(artifacts)
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()


def test_what_is_in_the_way_of_an_artifact_is_its_damage(artifacts: Artifacts) -> None:
    manifest = Path(artifacts.store.uri) / f"artifacts/{KEY}/manifest.json"
    manifest.mkdir(parents=True)
    with pytest.raises(DamagedError, match="in the way"):
        artifacts.write(KEY, {"a": b"1"})
    what, place = set_aside_if_damaged(artifacts, KEY)
    assert place.startswith(f"damaged/{KEY}/manifest.json/") and what
    artifacts.write(KEY, {"a": b"1"})
    assert set_aside_if_damaged(artifacts, KEY) == ("", "")
    assert set_aside_if_damaged(artifacts, "sum.never") == ("something else lies in its place", "")
    folder = manifest.parent.with_name("sum.file")
    folder.write_text("no folder")
    assert set_aside_if_damaged(artifacts, folder.name)[1].startswith("damaged/sum.file/")
    assert not folder.exists()


@pytest.mark.parametrize("moment", ["before its first file", "after the look at its manifest"])
def test_an_attempt_in_progress_is_not_set_aside(
    artifacts: Artifacts, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver has set the artifact aside, and it is being made again."""
    if moment == "before its first file":
        Path(artifacts.store.uri, f"artifacts/{KEY}/attempt").mkdir(parents=True)
    else:
        look = Artifacts.manifest

        def late(self: Artifacts, key: str) -> Manifest:
            try:
                return look(self, key)
            finally:
                monkeypatch.undo()
                self.write(key, {"a": b"1"})

        monkeypatch.setattr(Artifacts, "manifest", late)
    assert set_aside_if_damaged(artifacts, KEY)[1] == ""
    assert artifacts.write(KEY, {"a": b"1"}) == artifacts.manifest(KEY)


def test_a_wrong_file_names_the_right_ones_and_a_deleted_artifact_is_gone(artifacts: Artifacts) -> None:
    artifacts.write(KEY, {"a": b"1", "b": b"2"})
    with pytest.raises(NotFoundError, match="it has a, b"):
        artifacts.read(KEY, "c")
    artifacts.write(KEY, {"a": b"1", "b": b"2"})
    artifacts.delete(KEY)
    assert _files(artifacts) == []
    with pytest.raises(NotFoundError, match="does not exist"):
        artifacts.read(KEY, "a")


FULL = """
import resource, signal, sys
from pathlib import Path
from poolbench.errors import StoreError
from poolbench.storage import Artifacts, Manifest
from poolbench.storage.folder import FolderStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
artifacts = Artifacts(FolderStore(Path(sys.argv[1])))
try:
    artifacts.write("prober.probe.0001", {"a": bytes(100_000)})
except StoreError as error:
    print(error)
assert not artifacts.exists("prober.probe.0001")
"""


def test_a_full_disk_is_said_and_commits_nothing(tmp_path: Path) -> None:
    """A limit on file sizes fails a write as a full disk does."""
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "run the same command again" in done.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_where_the_store_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreError, match="store"):
        FolderStore(tmp_path / "store")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; only root may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system of its own can be mounted by root only")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_is_a_clear_error_and_keeps_what_was_there(small_disk: Path) -> None:
    store = FolderStore(small_disk)
    store.put("kept", b"before")
    with pytest.raises(StoreError, match="No space left on device; free space"):
        store.put("too-large", b"\0" * 2**20)
    assert store.get("kept") == b"before"
    assert [found.path for found in store.list()] == ["kept"]
    assert store.put("small", b"after")


@pytest.mark.parametrize(("moves", "written"), [(1, True), (99, False)])
def test_a_folder_that_is_moved_during_a_write_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, written: bool
) -> None:
    store, real, moved = FolderStore(tmp_path / "store"), folder._replace, []

    def replace(name: str, target: Path) -> bool:
        if len(moved) < moves:
            moved.append(target.parent.rename(tmp_path / f"aside-{len(moved)}"))
        return real(name, target)

    monkeypatch.setattr(folder, "_replace", replace)
    if not written:
        with pytest.raises(StoreError, match="No such file"):
            store.put("artifacts/a/table.arrow", b"data")
        return
    assert store.put("artifacts/a/table.arrow", b"data")
    assert store.get("artifacts/a/table.arrow") == b"data"
