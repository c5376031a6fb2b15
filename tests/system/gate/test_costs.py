"""What a request would cost is known before work starts: too much is refused at once, with number and limit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from poolbench.contracts.tables import INSTANCES, table_from_rows, vector_column
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import failure_path
from poolbench.queue.leases import FolderLeases
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.worker import Worker
from poolbench_prober.service import create as prober

LONG = "word " * 199_999


def vectors(num_rows: int, width: int = 2) -> dict[str, Any]:
    return {
        "vectors": [[float(row % 7)] * width for row in range(num_rows)],
        "labels": [row % 2 for row in range(num_rows)],
    }


PASSAGES_10K = [{"text": "It rained.", "label": row % 2} for row in range(9_999)]
TOO_LARGE: list[tuple[str, str, Any]] = [
    ("prober", "/probe", {**vectors(10_000), "params": {"num_bootstrap": 100_000}}),
    ("prober", "/probe", {**vectors(4_000, 50), "params": {"num_permutations": 1_000, "folds": 100}}),
    ("prober", "/probe", {**vectors(60_000)}),
    ("prober", "/probe", {**vectors(4_000, 50), "labels": [f"c{row}" for row in range(4_000)]}),
    ("pooler", "/annotate", {"texts": [LONG, LONG]}),
    ("pooler", "/annotate", {"texts": ["a"], "idf_texts": [LONG] * 11}),
    ("pooler", "/concepts", {"id": "mine", "positives": {"name": "a.csv", "content": LONG * 11}}),
    ("extractor", "/embed", {"texts": [LONG] * 6}),
    ("scorer", "/score", {"texts": [LONG[:99_000]] * 250, "scorer": "contrast"}),
    ("scorer", "/train", {"params": {"concept": "contrast", "num_windows": 100}, "passages": PASSAGES_10K}),
]


@pytest.mark.parametrize(("service", "path", "body"), TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_what_costs_too_much_is_refused_with_number_and_limit(
    clients: dict[str, TestClient], service: str, path: str, body: Any
) -> None:
    answer = clients[service].post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "too_large"), answer.text
    assert "the limit is" in error["message"]


def test_the_cards_own_sizes_are_far_below_the_limits() -> None:
    from poolbench.steps.prober import ProbeParams, TaskParams
    from poolbench_prober import cost

    rows = 1_400
    domains = np.array([f"d{row % 8}" for row in range(rows)])
    cost.of_concept(rows, 4_096, domains, ProbeParams()).require(cost.REQUEST)
    cost.of_concept(rows, 32 * 4_096, domains, ProbeParams(fold_seeds=tuple(range(1, 11))), 3).require(cost.TASK)
    cost.of_task(100_000, 4_096, 20, TaskParams(seeds=(0, 1, 2))).require(cost.TASK)
    cost.of_task(100_000, 4_096, 20, TaskParams(protocol="released")).require(cost.TASK)


def test_a_task_that_costs_too_much_fails_and_is_not_tried_again(tmp_path: Path) -> None:
    artifacts = Artifacts(FolderStore(tmp_path / "store"))
    rows, width = 20_000, 16
    names = [str(row) for row in range(rows)]
    instances = [{"instance_id": name, "first": [name], "label": f"class {name}", "group": name} for name in names]
    artifacts.write_table("instances", table_from_rows(instances, INSTANCES))
    found = {"passage_id": pa.array(names), "vector": vector_column(np.zeros((rows, width)))}
    columns = {"applied": [True] * rows, "token_share": pa.array([1.0] * rows, pa.float32()), "status": ["ok"] * rows}
    artifacts.write_table("vectors", pa.table({**found, **columns, "reason": pa.nulls(rows, pa.string())}))
    task = Task(
        kind="prober.task",
        inputs={"instances": "instances", "vectors/A1_mean/0/0": "vectors"},
        outputs={"measures/A1_mean/0": "measures"},
        params={"seeds": list(range(100))},
    )
    worker = Worker(prober(), artifacts, FolderLeases(tmp_path / "leases"))
    assert worker.run(task.model_dump(mode="json")) == "failed"
    failure = json.loads(artifacts.store.get(failure_path(task.task_id)))
    assert failure["code"] == "too_large" and "the limit is" in failure["reason"] and not failure["retryable"]
