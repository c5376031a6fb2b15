"""A revision is a hash of bytes: equal names, sizes and times do not hide other content, and no file is read twice."""

import os
import time
from pathlib import Path

import pytest

from poolbench.config import (
    REAL_CORPUS,
    asset_path,
    change_revision,
    contents,
    folder_revision,
    is_pretrained,
    require_unchanged,
    resolve_model,
)
from poolbench.config.contents import content_hash
from poolbench.errors import ModelError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    contents._kept_hash.cache_clear()
    return tmp_path / "state"


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read, in a time in which all of them were left alone for a while."""
    read: list[Path] = []
    plain = contents._hash
    monkeypatch.setattr(contents, "_hash", lambda file: (read.append(file), plain(file))[1])
    later = time.time_ns() + 10 * contents._SETTLED_NS
    monkeypatch.setattr(contents.time, "time_ns", lambda: later)
    return read


def model(folder: Path, weights: bytes = b"aaaa") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_a_file_is_read_once_by_all_processes(tmp_path: Path, num_read: list[Path], state: Path) -> None:
    file = model(tmp_path / "m") / "model.safetensors"
    first = content_hash(file)
    assert content_hash(file) == first and num_read == [file]
    contents._kept_hash.cache_clear()  # as in another process
    assert content_hash(file) == first and num_read == [file]
    file.write_bytes(b"bbbb")
    assert content_hash(file) != first and num_read == [file, file]
    (state / "hashes").chmod(0o500)
    file.write_bytes(b"cccc")
    assert content_hash(file) not in (first, "") and len(num_read) == 3


def test_a_file_that_just_changed_is_read_each_time(tmp_path: Path, state: Path) -> None:
    """Two writes within one step of the clock leave the same times."""
    file = model(tmp_path / "m") / "model.safetensors"
    content_hash(file)
    assert not (state / "hashes").exists()


def test_weights_of_equal_size_are_another_model(tmp_path: Path, num_read: list[Path]) -> None:
    folder = model(tmp_path / "m")
    ref, times = resolve_model(str(folder)), (folder / "model.safetensors").stat()
    require_unchanged(ref)
    assert folder_revision(folder) == ref.revision == folder_revision(model(tmp_path / "copy"))
    (folder / "model.safetensors").write_bytes(b"bbbb")
    os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))  # as `cp -p` does
    assert folder_revision(folder) != ref.revision
    with pytest.raises(ModelError, match=r"is at revision local-.*, asked for local-.*; plan the run again"):
        require_unchanged(ref)


def test_fine_tunes_of_equal_size_differ_too(tmp_path: Path, num_read: list[Path]) -> None:
    one, other = (change_revision(model(tmp_path / name, name.encode())) for name in ("aaaa", "bbbb"))
    assert one != other
    assert change_revision(model(tmp_path / "copy", b"aaaa")) == one


def test_code_and_chat_template_belong_to_a_model(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    revisions = {folder_revision(folder)}
    for name in ("modeling_own.py", "chat_template.jinja", "README.md", "optimizer.pt"):
        (folder / name).write_text("x")
        revisions.add(folder_revision(folder))
    assert len(revisions) == 3


def test_an_adapter_is_not_a_model(tmp_path: Path) -> None:
    (model(tmp_path / "m") / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"is an adapter .*merge it into its base"):
        resolve_model(str(tmp_path / "m"))


def test_a_hash_that_was_not_written_to_its_end_is_made_again(
    tmp_path: Path, num_read: list[Path], state: Path
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"aaaa")
    whole = content_hash(file)
    (kept,) = (state / "hashes").iterdir()
    for broken in (b"", whole[:9].encode(), b"\xff"):
        kept.write_bytes(broken)
        contents._kept_hash.cache_clear()
        assert content_hash(file) == whole
    assert num_read == [file.resolve()] * 4 and kept.read_text() == whole


def test_models_that_this_project_trains_and_ships_are_not_pretrained() -> None:
    models = ("demo", "planted", "smollm2-135m", "gemma-2-9b", "owner/name", "/models/mine")
    assert [is_pretrained(model) for model in models] == [False, False, True, True, True, True]


def test_real_text_may_come_from_a_wheel_and_a_folder_of_the_user_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, users = tmp_path / "poolbench_real_text" / REAL_CORPUS, tmp_path / "assets" / REAL_CORPUS
    wheel.mkdir(parents=True)
    users.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert asset_path(REAL_CORPUS) == wheel and asset_path("demo_lm").is_dir()
    monkeypatch.setenv("POOLBENCH_ASSETS", str(users.parent))
    assert asset_path(REAL_CORPUS) == users
