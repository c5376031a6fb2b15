"""gc: what it takes and what it spares."""

from __future__ import annotations

import json
from pathlib import Path

from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.cli.upkeep import scorer_keys, unneeded


def test_gc_spares_what_is_needed_young_or_pointed_at(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    for key in ("a.b.needed", "a.b.old", "restricted.a.b.old", "scorer.train.1"):
        artifacts.write(key, {"x": b"123"})
    artifacts.store.put("artifacts/a.b.torn/attempt/x", b"half")
    artifacts.store.put("scorers/contrast/minilm.json", json.dumps({"scorer": "scorer.train.1"}).encode())
    keep = {"a.b.needed"} | scorer_keys(artifacts)
    assert unneeded(artifacts, keep, older_than_s=0) == {}
    assert set(unneeded(artifacts, keep, older_than_s=2e10)) == {"a.b.old", "restricted.a.b.old", "a.b.torn"}
