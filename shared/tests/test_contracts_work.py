"""The work of a task: the same from the sizes that a worker reads as from those that a plan names."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.servers.quiet import TasksOnly

from poolbench.contracts.tables import vector_column
from poolbench.contracts.tasks import Task
from poolbench.contracts.work import Shape, Work
from poolbench.queue.leases import FolderLeases
from poolbench.steps import work_of
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker

MODEL = {"model": "demo", "model_revision": "r1", "dtype": "float32"}


def task(kind: str, inputs: list[str], outputs: list[str], **params: object) -> Task:
    return Task(
        kind=kind,
        inputs={role: f"in.{n}" for n, role in enumerate(inputs)},
        outputs={role: f"out.{n}" for n, role in enumerate(outputs)},
        params=params,
    )


GENERATE = task(
    "steerer.generate",
    ["prompts", "directions/A", "directions/B"],
    ["texts/A", "fluency/A", "texts/B", "fluency/B"],
    **MODEL,
    layer=1,
    strengths=[0.1, 0.2, 0.3],
    max_tokens=40,
)
NULLS = task(
    "steerer.generate",
    ["prompts", "directions/nulls"],
    ["texts/nulls", "fluency/nulls"],
    **MODEL,
    layer=1,
    strengths=[0.1],
    max_tokens=40,
    direction_ids="all",
    num_samples=2,
    temperature=0.7,
)
UNSTEERED = task("steerer.generate", ["prompts"], ["texts/unsteered"], **MODEL, layer=1, max_tokens=40)
PROBE = task(
    "prober.probe",
    ["passages/train", "passages/test", "train/A/1", "test/A/1", "train/B/1", "test/B/1"],
    ["measures/A/1", "scores/A/1", "measures/B/1"],
)
SCORE = task("scorer.score", ["scorer/a", "scorer/b", "texts/A", "texts/B"], ["scores/A", "scores/B"])
TASK = task("prober.task", ["instances", "vectors/A/1/0", "vectors/A/1/1"], ["measures/A/1"], seeds=[1, 2])
TRAIN = task("scorer.train", ["passages/scorer"], ["scorer", "measures"], concept="a", base="minilm", mode="head")
DEMO = "demo@r1/float32"


@pytest.mark.parametrize(
    ("made", "sizes", "expected"),
    [
        (GENERATE, {"prompts": Shape(20)}, Work(2 * 3 * 20 * 40, "tokens", DEMO)),
        (NULLS, {"prompts": Shape(20), "directions/nulls": Shape(25)}, Work(25 * 2 * 20 * 40, "tokens", DEMO)),
        (UNSTEERED, {"prompts": Shape(20)}, Work(20 * 40, "tokens", DEMO)),
        (
            PROBE,
            {"passages/train": Shape(200), "passages/test": Shape(100), "train/A/1": Shape(200, 16)},
            Work(2 * 300, "vectors", "corrected, width 16"),
        ),
        (
            SCORE,
            {"scorer/a": Shape(base="minilm"), "texts/A": Shape(60), "texts/B": Shape(40)},
            Work(200, "scores", "minilm"),
        ),
        (TRAIN, {"passages/scorer": Shape(400)}, Work(400, "passages", "minilm, head")),
        (
            TASK,
            {"instances": Shape(300), "vectors/A/1/0": Shape(200, 16), "vectors/A/1/1": Shape(200, 16)},
            Work(2 * 300, "instances", "4 values of C, permuted control, code lengths, width 16"),
        ),
        (TASK, {"instances": Shape(300)}, None),
        (GENERATE, {}, None),
        (task("scorer.score", ["texts/A"], ["scores/A"]), {"texts/A": Shape(60)}, None),
        (task("pooler.pool", ["annotations"], ["A1_mean/1"]), {"annotations": Shape(60)}, None),
        (PROBE, {"passages/train": Shape(200), "passages/test": Shape(100)}, None),
        (task("prober.add", ["x"], ["y"]), {"x": Shape(1)}, None),
        (task("steerer.generate", ["prompts"], ["texts/A"], max_tokens="many"), {"prompts": Shape(1)}, None),
    ],
)
def test_work_follows_from_sizes(made: Task, sizes: dict[str, Shape], expected: Work | None) -> None:
    assert work_of(made, sizes) == expected


def test_extraction_with_gradients_is_work_of_another_kind() -> None:
    def variant(*strategies: str) -> str:
        named = [{"id": name, "params": {}} for name in strategies]
        made = task("extractor.extract", ["passages"], ["A1_mean/1"], **MODEL, layers=[1], strategies=named)
        found = work_of(made, {"passages": Shape(200)})
        assert found is not None and found[:2] == (200, "passages")
        return found.variant

    assert variant("A1_mean") == DEMO
    assert variant("A1_mean", "S2_gradient") == f"{DEMO} with gradients"


class Prober(TasksOnly):
    """Reads all inputs of a task and writes small tables; stops after some outputs, as a killed worker would."""

    name = "prober"

    def __init__(self, outputs: int | None = None) -> None:
        self.outputs = outputs
        self.handlers: dict[str, Handler] = {PROBE.kind: self.probe}

    def probe(self, given: Task, io: TaskIO) -> None:
        for role in given.inputs:
            io.table(role)
        for role in sorted(io.missing)[: self.outputs]:
            io.write_table(role, pa.table({"x": [1]}))


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    made = Artifacts(FolderStore(tmp_path / "store"))
    for role, key in PROBE.inputs.items():
        rows = 200 if "train" in role else 100
        vectors = vector_column(np.zeros((rows, 16)))
        columns = {"passage_id": [str(n) for n in range(rows)]}
        made.write_table(key, pa.table(columns if role.startswith("passages") else columns | {"vector": vectors}))
    return made


def test_a_worker_records_the_work_that_a_plan_expects(artifacts: Artifacts, tmp_path: Path) -> None:
    Worker(Prober(), artifacts, FolderLeases(tmp_path / "leases")).run(PROBE.model_dump(mode="json"))
    for key in PROBE.outputs.values():
        producer = artifacts.manifest(key).producer
        assert producer["work"] == {"amount": 600.0, "unit": "vectors", "variant": "corrected, width 16"}
        assert producer["num_outputs"] == 3
        assert isinstance(producer["accelerator"], str)


def test_a_repeated_task_records_only_its_share(artifacts: Artifacts, tmp_path: Path) -> None:
    leases = FolderLeases(tmp_path / "leases")
    Worker(Prober(outputs=1), artifacts, leases).run(PROBE.model_dump(mode="json"))
    Worker(Prober(), artifacts, leases).run(PROBE.model_dump(mode="json"))
    written = [artifacts.manifest(key).producer for key in PROBE.outputs.values()]
    assert sorted((each["num_outputs"], each["work"]["amount"]) for each in written) == [(2, 400), (2, 400), (3, 600)]
