"""A folder that is moved while a file is written into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolbench.errors import StoreError
from poolbench.storage import folder
from poolbench.storage.folder import FolderStore


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
