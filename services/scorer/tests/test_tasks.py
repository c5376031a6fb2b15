"""The service's tasks, names of scorers, and scorers of sensitive concepts, in a folder store."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers.counted import Counted

from poolbench.contracts.tables import PROMPTS, SCORES, TEXTS, table_from_rows
from poolbench.errors import InputError, NotFoundError, UnknownConceptError, UnknownNameError
from poolbench.library.scorers import ScorerRecords, name_scorer, record_gate
from poolbench.steps.scorer import CONFIG, REPORT
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_scorer.classifiers.shelf import ScorerShelf
from poolbench_scorer.http.requests import ScoreRequest
from poolbench_scorer.service import ScorerService
from poolbench_scorer.tasks import _KEPT, KEPT_SCORERS, read_scorer
from poolbench_scorer.training.train import Trained

from .conftest import run, save_tiny_bert


def steered(passages: pa.Table, name: str) -> pa.Table:
    """TEXTS that continue passages."""
    rows = [
        {"text_id": f"{name}-{index}", "prompt_id": row["passage_id"], "text": row["text"][-200:]}
        for index, row in enumerate(passages.to_pylist())
    ]
    return table_from_rows(rows, TEXTS)


def test_train_gate_and_score_as_tasks(
    service: ScorerService,
    artifacts: Artifacts,
    tiny_bert: Path,
    scorer_passages: pa.Table,
    test_passages: pa.Table,
) -> None:
    artifacts.write_table("p.scorer", scorer_passages)
    artifacts.write_table("p.test", test_passages)
    artifacts.write_table("t.one", steered(test_passages, "one"))
    artifacts.write_table("t.two", steered(test_passages.slice(0, 5), "two"))
    params = {"concept": "contrast", "base": str(tiny_bert), "mode": "head", "epochs": 1, "num_windows": 1}
    outputs = {"scorer": "scorer.train.a", "measures": "scorer.train.b"}
    io = run(
        service,
        artifacts,
        "scorer.train",
        inputs={"passages/scorer": "p.scorer"},
        outputs=outputs,
        params=params,
    )
    assert not io.missing
    (pointer,) = artifacts.store.list("scorers/contrast/")
    assert json.loads(artifacts.store.get(pointer.path))["scorer"] == "scorer.train.a"

    inputs = {"scorer": "scorer.train.a", "passages/test": "p.test", "continuations": "t.one"}
    run(service, artifacts, "scorer.gate", inputs=inputs, outputs={"measures": "g"}, params={"num_tokens": 40})
    rows = artifacts.read_table("g").to_pylist()
    assert json.loads(rows[-1]["params"]) == {"part": "verdict"}
    assert rows[-1]["metric"] == "scorer.gate" and rows[-1]["value"] == 0.0, "a random base separates nothing"
    assert [one.key for one in ScorerRecords(artifacts.store).scorers()] == ["scorer.train.a"], (
        "a verdict is not a scorer"
    )
    asked = ScoreRequest(texts=["However."], scorer="contrast")
    assert service.score(asked)["gate"] == {"passed": False, "reason": rows[-1]["reason"]}
    record_gate(artifacts.store, "contrast", "scorer.train.a", "of.another.model", passed=True, reason="")
    assert service.score(asked)["gate"] == {"passed": False, "reason": f"1 of 2 gates failed: {rows[-1]['reason']}"}

    inputs = {"scorer/contrast": "scorer.train.a", "texts/one": "t.one", "texts/two": "t.two"}
    outputs = {"scores/one": "s.one", "scores/two": "s.two"}
    run(service, artifacts, "scorer.score", inputs=inputs, outputs=outputs)
    one, two = (artifacts.read_table(key).to_pylist() for key in ("s.one", "s.two"))
    assert [row["text_id"] for row in two] == [f"two-{index}" for index in range(5)]
    assert [row["score"] for row in two] == pytest.approx([row["score"] for row in one[:5]], abs=1e-6)

    # Scores that are there are copied where every scorer of the task has scored the text.
    scored = [{**row, "score": 0.123} for row in one[:3]] + [{**one[3], "scorer": "other"}]
    artifacts.write_table("s.part", table_from_rows(scored, SCORES))
    inputs = {"scorer/contrast": "scorer.train.a", "texts/one": "t.one", "scored/one": "s.part"}
    run(service, artifacts, "scorer.score", inputs=inputs, outputs={"scores/one": "s.all"})
    added = {row["text_id"]: row["score"] for row in artifacts.read_table("s.all").to_pylist()}
    expected = {row["text_id"]: row["score"] for row in one} | {row["text_id"]: 0.123 for row in one[:3]}
    assert added == pytest.approx(expected, abs=1e-6)


def test_a_redone_task_trains_nothing_and_restores_its_name(
    service: ScorerService, artifacts: Artifacts, minilm_training: Trained
) -> None:
    artifacts.write("k.scorer", minilm_training.files)
    artifacts.write_table("k.measures", minilm_training.measures)
    outputs = {"scorer": "k.scorer", "measures": "k.measures"}
    inputs = {"passages/scorer": "never.written"}
    run(service, artifacts, "scorer.train", inputs=inputs, outputs=outputs, params={"concept": "contrast"})
    assert [one.key for one in ScorerRecords(artifacts.store).scorers()] == ["k.scorer"]


def test_tasks_load_a_scorer_once_and_keep_the_last_few(
    service: ScorerService, artifacts: Artifacts, minilm_training: Trained, test_passages: pa.Table
) -> None:
    """Kept by content: the same key in another store, or other weights, are another scorer."""
    artifacts.write_table("t.kept", steered(test_passages.slice(0, 2), "kept"))
    scores = []
    for index in range(KEPT_SCORERS + 2):
        config = json.loads(minilm_training.files["config.json"]) | {"temperature": 1.0 + index}
        artifacts.write(f"scorer.k{index}", minilm_training.files | {"config.json": json.dumps(config).encode()})
        inputs = {"scorer/contrast": f"scorer.k{index}", "texts/x": "t.kept"}
        io = run(service, artifacts, "scorer.score", inputs=inputs, outputs={"scores/x": f"s.{index}"})
        assert read_scorer(io, "scorer/contrast") is read_scorer(io, "scorer/contrast")
        scores.append(artifacts.read_table(f"s.{index}")["score"].to_pylist())
    assert len({tuple(row) for row in scores}) == KEPT_SCORERS + 2
    assert len(_KEPT) == KEPT_SCORERS


def test_scoring_wants_scorers_and_texts(service: ScorerService, artifacts: Artifacts) -> None:
    with pytest.raises(InputError, match="scorer/<concept>"):
        run(service, artifacts, "scorer.score", inputs={}, outputs={"scores/x": "s"})
    artifacts.write_table("t", table_from_rows([], PROMPTS))
    with pytest.raises(InputError, match="texts/x lacks the columns"):
        inputs = {"scorer/contrast": "none", "texts/x": "t"}
        run(service, artifacts, "scorer.score", inputs=inputs, outputs={"scores/x": "s"})


def test_an_import_as_a_task_works_without_passages(
    service: ScorerService, artifacts: Artifacts, scorer_passages: pa.Table, tmp_path: Path
) -> None:
    """A corpus in the published layout has no scorer documents; the gate still judges the scorer."""
    save_tiny_bert(tmp_path / "contrast")
    artifacts.write_table("p.none", scorer_passages.slice(0, 0))
    params = {"concept": "contrast", "base": str(tmp_path), "mode": "import", "subfolder": "contrast"}
    outputs = {"scorer": "scorer.train.i", "measures": "scorer.train.m"}
    inputs = {"passages/scorer": "p.none"}
    given = {**params, "positive_label": "1"}
    run(service, artifacts, "scorer.train", inputs=inputs, outputs=outputs, params=given)
    (auroc,) = (row for row in artifacts.read_table("scorer.train.m").to_pylist() if row["metric"] == "scorer.auroc")
    assert (auroc["value"], auroc["status"]) == (None, "no_scorer")


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
    shelf = ScorerShelf(Artifacts(store))
    with pytest.raises(NotFoundError, match=r"no scorer 'contrast'.*Train one"):
        shelf.resolve("contrast", shelf.records())


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
        assert (
            shelf.resolve("contrast", shelf.records())
            == shelf.resolve("contrast@minilm", shelf.records())
            == "scorer.train.1"
        )
    for key in ("scorer.train.3", "scorer.train.2", "scorer.train.3"):
        make(key, requested=True)
        assert shelf.resolve("contrast", shelf.records()) == key
    make("scorer.train.4", requested=False)
    listed = shelf.listing()
    assert {entry["scorer"] for entry in listed if entry["default"]} == {"scorer.train.3"}
    assert len(listed) == 4 and all(shelf.resolve(entry["id"], shelf.records()) == entry["scorer"] for entry in listed)


def test_a_scorer_answers_by_its_names_after_its_concept_was_removed(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    artifacts.write("scorer.train.1", {CONFIG: b'{"kind": "head", "concept": "removed"}', REPORT: b"{}"})
    artifacts.store.put("scorers/removed/minilm.json", b'{"base": "minilm", "scorer": "scorer.train.1"}')
    shelf = ScorerShelf(artifacts)
    names = ("removed", "removed@minilm", shelf.listing()[0]["id"], "scorer.train.1")
    assert [shelf.resolve(name, shelf.records()) for name in names] == ["scorer.train.1"] * len(names)
    with pytest.raises(UnknownConceptError, match="contrast"):
        shelf.resolve("contrst", shelf.records())


def test_a_base_of_two_concepts_names_no_scorer(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path))
    for number, concept in enumerate(("contrast", "hedging")):
        name_scorer(artifacts.store, f"scorer.train.{number}", concept, "someone/scorers", requested=True)
    shelf = ScorerShelf(artifacts)
    with pytest.raises(UnknownNameError, match="hedging@someone/scorers"):
        shelf.resolve("someone/scorers", shelf.records())


def test_a_request_lists_the_scorers_once_and_reads_what_changed(
    service: ScorerService, artifacts: Artifacts, minilm_training: Trained
) -> None:
    keys = [f"scorer.train.{number}" for number in range(1, 5)]
    for key in keys:
        artifacts.write(key, minilm_training.files)
        name_scorer(artifacts.store, key, "contrast", f"base{key[-1]}", requested=False)
        record_gate(artifacts.store, "contrast", key, f"gate.{key}", passed=True, reason="")
    store = artifacts.store = Counted(artifacts.store)  # type: ignore[assignment]
    request = ScoreRequest(texts=["However."], scorers=[f"contrast@base{key[-1]}" for key in keys])

    def requests() -> dict[str, int]:
        store.requests.clear()
        assert [one["scorer"] for one in service.score(request)["scorers"]] == keys
        return dict(store.requests)

    first = requests()
    assert first["list"] == 1 and requests() == {"list": 1}
    name_scorer(artifacts.store, "scorer.train.5", "hedging", "minilm", requested=False)
    record_gate(artifacts.store, "contrast", keys[0], "gate.of.another.model", passed=False, reason="too low")
    assert requests() == {"list": 1, "get": 2}
