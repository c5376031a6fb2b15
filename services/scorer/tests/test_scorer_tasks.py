"""The service's tasks, in a folder store."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from poolbench.contracts.tables import PROMPTS, TEXTS, table_from_rows
from poolbench.errors import InputError
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.scorers import named_scorers, record_gate
from poolbench_scorer.http.requests import ScoreRequest
from poolbench_scorer.service import ScorerService, create
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


def test_the_service_is_what_the_runtime_expects() -> None:
    service = create()
    assert service.name == "scorer"
    assert set(service.handlers) == {"scorer.train", "scorer.gate", "scorer.score"}


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
    assert [one.key for one in named_scorers(artifacts.store)] == ["scorer.train.a"], "a verdict is not a scorer"
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


def test_a_redone_task_trains_nothing_and_restores_its_name(
    service: ScorerService, artifacts: Artifacts, minilm_training: Trained
) -> None:
    artifacts.write("k.scorer", minilm_training.files)
    artifacts.write_table("k.measures", minilm_training.measures)
    outputs = {"scorer": "k.scorer", "measures": "k.measures"}
    inputs = {"passages/scorer": "never.written"}
    run(service, artifacts, "scorer.train", inputs=inputs, outputs=outputs, params={"concept": "contrast"})
    assert [one.key for one in named_scorers(artifacts.store)] == ["k.scorer"]


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
