"""Names of scorers: no run changes what one means; records that cannot be read are left out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from poolbench.errors import IntegrityError, NotFoundError, UnknownConceptError
from poolbench.steps.scorer import CONFIG, REPORT
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.storage.scorers import name_scorer, record_gate
from poolbench_scorer.models.shelf import ScorerShelf


@pytest.mark.parametrize("content", [b"", b"\xff garbage", b"[]", b"null", b'{"base": "minilm"}', b"[" * 9999])
def test_a_damaged_pointer_is_left_out_and_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    store = FolderStore(tmp_path)
    name_scorer(store, "scorer.train.1", "hedging", "minilm", requested=False)
    store.put("scorers/contrast/minilm.json", content)
    store.put("scorers/stray.json", b"{}")
    assert [one["concept"] for one in ScorerShelf(Artifacts(store)).listing()] == ["hedging"]
    assert "scorers/contrast/minilm.json is damaged: train or import that scorer again" in caplog.text
    with pytest.raises(NotFoundError, match=r"no scorer 'contrast'.*Train one"):
        ScorerShelf(Artifacts(store)).resolve("contrast")


def test_a_damaged_scorer_is_listed_as_failed_beside_the_others(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    for key, concept in (("scorer.train.1", "hedging"), ("scorer.train.2", "contrast")):
        artifacts.write(key, {CONFIG: b'{"kind": "head"}', REPORT: b"{}"})
        name_scorer(artifacts.store, key, concept, "minilm", requested=False)
    path = tmp_path / artifacts.manifest("scorer.train.1").files[CONFIG].path
    path.write_bytes(path.read_bytes().replace(b"head", b"hxad"))
    found = {entry["concept"]: entry for entry in ScorerShelf(artifacts).listing()}
    assert (found["contrast"]["status"], found["hedging"]["status"]) == ("ok", "failed")
    assert "does not match the hash" in found["hedging"]["reason"]


def test_no_run_changes_what_a_name_means_and_a_request_does(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    shelf = ScorerShelf(artifacts)

    def make(key: str, *, requested: bool) -> None:
        artifacts.write(key, {CONFIG: b'{"kind": "head", "concept": "contrast"}', REPORT: b"{}"})
        name_scorer(artifacts.store, key, "contrast", "minilm", requested=requested)
        time.sleep(0.02)  # the times of two records differ

    for key in ("scorer.train.1", "scorer.train.2", "scorer.train.1"):
        make(key, requested=False)
        assert shelf.resolve("contrast") == shelf.resolve("contrast@minilm") == "scorer.train.1"
    for key in ("scorer.train.3", "scorer.train.2", "scorer.train.3"):
        make(key, requested=True)
        assert shelf.resolve("contrast") == key
    make("scorer.train.4", requested=False)
    listed = shelf.listing()
    assert {entry["scorer"] for entry in listed if entry["default"]} == {"scorer.train.3"}
    assert len(listed) == 4 and all(shelf.resolve(entry["id"]) == entry["scorer"] for entry in listed)


def test_a_scorer_answers_by_its_names_after_its_concept_was_removed(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    artifacts.write("scorer.train.1", {CONFIG: b'{"kind": "head", "concept": "removed"}', REPORT: b"{}"})
    artifacts.store.put("scorers/removed/minilm.json", b'{"base": "minilm", "scorer": "scorer.train.1"}')
    shelf = ScorerShelf(artifacts)
    names = ("removed", "removed@minilm", shelf.listing()[0]["id"], "scorer.train.1")
    assert [shelf.resolve(name) for name in names] == ["scorer.train.1"] * len(names)
    with pytest.raises(UnknownConceptError, match="contrast"):
        shelf.resolve("contrst")


def test_verdicts_of_gates_are_those_of_one_scorer_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    shelf = ScorerShelf(Artifacts(store))
    record_gate(store, "contrast", "scorer.train.1", "scorer.gate.1", passed=True, reason="")
    assert shelf.gate("scorer.train.1", "contrast") == {"passed": True, "reason": None}
    assert shelf.gate("scorer.train.2", "contrast") is None and shelf.gate("scorer.train.1", "hedging") is None
    (record,) = store.list("scorers/contrast/gates/")
    store.put(record.path, b"[]")
    with pytest.raises(IntegrityError, match=r"contrast/gates/.* is damaged; remove it"):
        shelf.gate("scorer.train.1", "contrast")
