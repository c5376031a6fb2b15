"""Pointers to scorers that cannot be read: left out, and no answer fails with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolbench.errors import NotFoundError
from poolbench.steps.scorer import CONFIG, REPORT, TrainParams
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_scorer.models.shelf import ScorerShelf, point_at, pointers


@pytest.mark.parametrize("content", [b"", b"\xff garbage", b"[]", b"null", b'{"base": "minilm"}', b"[" * 9999])
def test_a_damaged_pointer_is_left_out_and_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    store = FolderStore(tmp_path)
    point_at(store, "scorer.train.1", TrainParams(concept="hedging"))
    (sound,) = pointers(store)
    store.put("scorers/contrast/minilm.json", content)
    store.put("scorers/stray.json", b"{}")
    assert pointers(store) == [sound]
    assert "scorers/contrast/minilm.json is damaged: train or import that scorer again" in caplog.text
    with pytest.raises(NotFoundError, match=r"no scorer 'contrast'.*Train one"):
        ScorerShelf(Artifacts(store)).resolve("contrast")


def test_a_damaged_scorer_is_listed_as_failed_beside_the_others(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    for key, concept in (("scorer.train.1", "hedging"), ("scorer.train.2", "contrast")):
        artifacts.write(key, {CONFIG: b'{"kind": "head"}', REPORT: b"{}"})
        point_at(artifacts.store, key, TrainParams(concept=concept))
    path = tmp_path / artifacts.manifest("scorer.train.1").files[CONFIG].path
    path.write_bytes(path.read_bytes().replace(b"head", b"hxad"))
    found = {entry["concept"]: entry for entry in ScorerShelf(artifacts).listing()}
    assert (found["contrast"]["status"], found["hedging"]["status"]) == ("ok", "failed")
    assert "does not match the hash" in found["hedging"]["reason"]
