"""gc: what it takes and what it spares."""

import json
import os
import time
from pathlib import Path

import pytest

from poolbench.errors import IntegrityError
from poolbench.storage import Artifacts, older_than
from poolbench.storage.damage import described_damage, objects_set_aside, set_aside_if_damaged
from poolbench.storage.folder import FolderStore
from poolbench_driver.cli.upkeep import scorer_keys, unneeded


def test_gc_spares_what_is_needed_young_or_pointed_at(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    for key in ("a.b.needed", "a.b.old", "restricted.a.b.old", "scorer.train.1"):
        artifacts.write(key, {"x": b"123"})
    artifacts.store.put("artifacts/a.b.torn/attempt/x", b"half")
    artifacts.store.put("scorers/contrast/minilm.json", json.dumps({"scorer": "scorer.train.1"}).encode())
    keep = {"a.b.needed"} | scorer_keys(artifacts)
    assert unneeded(artifacts, keep, older_than(artifacts.store, 3600)) == {}
    assert set(unneeded(artifacts, keep, older_than(artifacts.store, 0))) == {
        "a.b.old",
        "restricted.a.b.old",
        "a.b.torn",
    }


@pytest.mark.parametrize("content", [b"garbage \xff", b"[1]", b"{}", b"null"])
def test_a_damaged_scorer_pointer_stops_gc_with_its_name(tmp_path: Path, content: bytes) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    artifacts.store.put("scorers/contrast/minilm.json", content)
    with pytest.raises(IntegrityError, match=r"scorers/contrast/minilm\.json.*poolbench-driver import scorers"):
        scorer_keys(artifacts)


def test_what_was_set_aside_is_shown_and_dated_by_when_it_was(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    assert described_damage(artifacts) == ""
    for key in ("a.b.1", "restricted.a.b.1"):
        entry = artifacts.write(key, {"x": b"123"}).files["x"]
        artifacts.store.put(entry.path, b"1234")
        os.utime(tmp_path / entry.path, (0, 0))
        assert set_aside_if_damaged(artifacts, key)[1]
    assert described_damage(artifacts).startswith("4 damaged files")
    assert all(time.time() - info.modified_s < 60 for info in objects_set_aside(artifacts.store))
    assert unneeded(artifacts, set(), older_than(artifacts.store, 0)) == {}
