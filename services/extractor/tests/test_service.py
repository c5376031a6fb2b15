"""The adapter on a real object store: tasks and what they commit, HTTP, and clear errors."""

import gc
import shutil
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from services.extractor.tests.conftest import TEXTS, WORDS
from tests.waiting import PATIENCE_S, wait_until
from transformers import AutoTokenizer, LlamaForCausalLM

from poolbench.contracts.tables import ANNOTATIONS, table_from_rows, vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.errors import ModelError
from poolbench.http.api import build_api
from poolbench.storage import Artifacts
from poolbench.worker.taskio import TaskIO
from poolbench_extractor.models import load
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder
from poolbench_extractor.service import ExtractorService, create

TOKEN = "only-for-this-test"


@pytest.fixture(scope="module")
def service() -> ExtractorService:
    return create()


@pytest.fixture
def artifacts(artifacts: Artifacts) -> Artifacts:
    """With an annotation of the passages."""
    notes = [{"passage_id": f"p{number}", **WORDS} for number in range(len(TEXTS))]
    artifacts.write_table("pooler.annotate.1", table_from_rows(notes, ANNOTATIONS))
    return artifacts


def task(kind: str, roles: list[str], params: dict[str, Any]) -> Task:
    inputs = {"passages": "corpus.passages.1"}
    if kind == "extractor.extract":
        inputs["annotations"] = "pooler.annotate.1"
    return Task(
        kind=kind,
        inputs=inputs,
        outputs={role: f"out.{role.replace('/', '.')}" for role in roles},
        params=params,
    )


def run(service: ExtractorService, work: Task, artifacts: Artifacts) -> TaskIO:
    io = TaskIO(work, artifacts)
    service.handlers[work.kind](work, io)
    return io


def extraction(model: Path, roles: list[str]) -> Task:
    names = dict.fromkeys(role.split("/")[0] for role in roles if not role.startswith("states/"))
    params = {"model": str(model), "strategies": [{"id": name} for name in names], "layers": [0, 3]}
    return task("extractor.extract", roles, params)


def test_extract_commits_every_role(service: ExtractorService, artifacts: Artifacts, saved_llama: Path) -> None:
    roles = ["A1_mean/0", "A1_mean/3", "S1_attention/3", "L1_pos_filtered/0", "S2_gradient/0", "states/0"]
    io = run(service, extraction(saved_llama, roles), artifacts)
    assert not io.missing
    table = artifacts.read_table("out.L1_pos_filtered.0")
    assert vector_matrix(table["vector"]).shape == (5, 32)
    assert table["applied"].to_pylist() == [True, False, True, True, True]  # "No." has no second word
    assert set(artifacts.read_table("out.S2_gradient.0")["status"].to_pylist()) == {"ok"}
    assert artifacts.read_table("out.states.0").num_rows == 5
    assert artifacts.manifest("out.A1_mean.0").meta["model_revision"].startswith("local-")


def test_only_missing_outputs_are_computed(service: ExtractorService, artifacts: Artifacts, saved_llama: Path) -> None:
    run(service, extraction(saved_llama, ["A1_mean/0"]), artifacts)
    first = artifacts.manifest("out.A1_mean.0")
    run(service, extraction(saved_llama, ["A1_mean/0", "A2_max/0"]), artifacts)
    assert artifacts.manifest("out.A1_mean.0") == first and artifacts.exists("out.A2_max.0")


def test_calibrate(service: ExtractorService, artifacts: Artifacts, saved_llama: Path) -> None:
    params = {"model": str(saved_llama), "layers": [1, 3]}
    run(service, task("extractor.calibrate", ["calibration"], params), artifacts)
    rows = artifacts.read_table("out.calibration").to_pylist()
    assert [row["layer"] for row in rows] == [1, 3] and all(row["median_residual_norm"] > 0 for row in rows)


def test_tokens_are_counted_and_weigh(service: ExtractorService, artifacts: Artifacts, saved_llama: Path) -> None:
    twice = {f"passages/{name}": "corpus.passages.1" for name in ("a", "b")}
    params = {"model": str(saved_llama)}
    count = Task(kind="extractor.count", inputs=twice, outputs={"frequencies": "counts"}, params=params)
    run(service, count, artifacts)
    counts = artifacts.read_table("counts")
    tokenizer = AutoTokenizer.from_pretrained(saved_llama)
    texts = artifacts.read_table("corpus.passages.1")["text"].to_pylist()
    expected = Counter(t for text in texts for t in tokenizer(text, add_special_tokens=False)["input_ids"])
    assert dict(zip(*(counts[name].to_pylist() for name in counts.column_names), strict=True)) == {
        token: 2 * number for token, number in expected.items()
    }
    work = extraction(saved_llama, ["S4_sif/0"])
    run(service, work, artifacts)
    assert "no frequency" in artifacts.read_table("out.S4_sif.0")["reason"][0].as_py()
    weighed = work.model_copy(
        update={"inputs": {**work.inputs, "frequencies": "counts"}, "outputs": {"S4_sif/0": "sif"}}
    )
    run(service, weighed, artifacts)
    assert set(artifacts.read_table("sif")["status"].to_pylist()) == {"ok"}


def test_a_model_folder_without_tokenizer(
    service: ExtractorService, artifacts: Artifacts, saved_llama: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in saved_llama.glob("*"):
        if "token" not in file.name:
            shutil.copy(file, bare)
    with pytest.raises(ModelError, match="holds no tokenizer"):
        run(service, extraction(bare, ["A1_mean/0"]), artifacts)


def test_a_request_for_another_model_waits_until_no_task_holds_the_first(
    service: ExtractorService, artifacts: Artifacts, saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TestClient(build_api(service, TOKEN), headers={"Authorization": f"Bearer {TOKEN}"})
    other = shutil.copytree(saved_llama, tmp_path / "other")
    in_memory: list[int] = []

    def num_models() -> int:
        return sum(type(each) is LlamaForCausalLM for each in gc.get_objects())

    def counted(*args: Any) -> Decoder:
        in_memory.append(num_models())
        return load_decoder(*args)

    def embed(model: Path) -> int:
        body = {"texts": ["one two"], "model": str(model), "layer": -1}
        return client.post("/embed", json=body).status_code

    class Watched(TaskIO):
        def progress(self, done: int, total: int, note: str = "") -> None:
            if not waiting:
                assert embed(saved_llama) == 200  # the model of the task serves requests meanwhile
                waiting.append(threads.submit(embed, other))
                wait_until(lambda: service._models._line)

    service.release_memory()
    of_fixtures = num_models()
    monkeypatch.setattr(load, "load_decoder", counted)
    waiting: list[Future[int]] = []
    work = extraction(saved_llama, ["A1_mean/3"])
    with ThreadPoolExecutor(1) as threads:
        service.handlers[work.kind](work, Watched(work, artifacts))
        assert waiting[0].result(PATIENCE_S) == 200
    assert embed(saved_llama) == 200
    assert in_memory == [of_fixtures] * 3  # when one is loaded, no other one is there


def test_http(service: ExtractorService, saved_llama: Path) -> None:
    client = TestClient(build_api(service, TOKEN), headers={"Authorization": f"Bearer {TOKEN}"})
    body = {"texts": ["one two", "three"], "model": str(saved_llama), "strategy": "W2_last_k", "layer": -1}
    assert client.post("/embed", json=body).json()["layer"] == 3
    described = client.get("/model", params={"model": str(saved_llama)}).json()
    assert (described["num_blocks"], described["width"], described["window"]) == (4, 32, 128)
    assert client.get("/health").json()["model"] == str(saved_llama)
    assert client.post("/embed", json={**body, "ids": ["a"]}).status_code == 400
