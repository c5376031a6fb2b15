"""A full disk: one clear error, and nothing half-written that a reader could take for an object."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from poolbench.errors import StoreError
from poolbench.storage.folder import FolderStore


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
