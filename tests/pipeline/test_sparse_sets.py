"""A probing set from texts to sparse probes and D1 on the demo model, through the plan and the services' handlers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolbench.contracts import Row
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_corpora.probing import PROBING_SETS
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.source import RowSource
from poolbench_driver.suites.ce_bench.concepts import concept_rows, readers
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan

NAME = "planted-number"
SETTINGS = {"suite": "ce-bench", "saes": ["topk-512"], "sets": [NAME], "budget": {"num_bootstrap": 50}}
Finished = tuple[CeBenchPlan, Artifacts, list[Row]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run with one set; the stories are left out."""
    from poolbench_extractor.service import create as extractor
    from poolbench_prober.service import create as prober

    suite: Any = SUITES.get("ce-bench")
    artifacts = Artifacts(FolderStore(tmp_path_factory.mktemp("store")))
    session = SimpleNamespace(services=None, artifacts=artifacts)
    plan = suite.plan(suite.resolve(load_run_config(None, SETTINGS), session))
    for key, step in plan.local.items():
        made = step.build()
        (artifacts.write_table if isinstance(made, pa.Table) else artifacts.write)(key, made)
    handlers = {**extractor().handlers, **prober().handlers}
    for task in plan.sets.work.tasks.values():
        io = TaskIO(task, artifacts)
        handlers[task.kind](task, io)
        assert not io.missing
    return plan, artifacts, list(concept_rows(plan.sets, RowSource(artifacts, {}, plan.producers), "task"))


def test_the_split_is_that_of_the_probing_task(finished: Finished) -> None:
    """The suite holmes gives the same instances to train and test with the same seed."""
    from poolbench_prober.probing import Targets

    targets = Targets.from_table(PROBING_SETS.read(PROBING_SETS.get(NAME)).instances)
    for split, rows in targets.split(finished[0].config.seed).items():
        if split != "dev":
            table = finished[0].scope.sets.by_set[NAME][split]
            assert set(table["passage_id"].to_pylist()) == {targets.ids[row] for row in rows}
            classes = dict(zip(targets.ids, targets.values, strict=True))
            assert [classes[name] for name in table["passage_id"].to_pylist()] == table["label"].to_pylist()


def test_features_and_directions_read_the_set(finished: Finished) -> None:
    """Singular and plural subjects: any probe of the model's states knows them, and one trained feature does."""
    found = {each.name: each.values[NAME] or np.nan for each in readers(finished[2])}
    assert {f"A1_mean along {name}" for name in ("C1", "C2", "C3", "C4", "C5")} <= set(found)
    assert found["A1_mean, probe of all dimensions"] > 0.9
    for k in (1, 2, 5):
        assert found[f"topk-512, k = {k}"] > max(0.75, found[f"topk-512 random, k = {k}"])


def test_a_probe_of_one_feature_ranks_by_that_feature(finished: Finished) -> None:
    """On the test split, the AUROC is that of the named feature itself, up to its sign: by sorting, in NumPy alone."""
    plan, artifacts, rows = finished
    (row,) = (
        row
        for row in rows
        if (row["entrant"], row["metric"]) == ("topk-512", "sparse.auroc_test") and json.loads(row["params"])["k"] == 1
    )
    (feature,) = json.loads(row["details"])["features"]
    labels = plan.scope.sets.by_set[NAME]["test"].select(["passage_id", "label"]).to_pydict()
    (task,) = (task for task in plan.sets.work.tasks.values() if task.kind == "prober.sparse")
    key = next(key for role, key in task.inputs.items() if role.startswith("features/") and _reads(plan, key, "test"))
    values = {
        each["passage_id"]: dict(zip(each["features"], each["means"], strict=True)).get(feature, 0.0)
        for each in artifacts.read_table(key).to_pylist()
        if each["part"] == "all"
    }
    x = np.array([values[name] for name in labels["passage_id"]])
    y = np.array(labels["label"])
    wins = np.sign(x[y == 1][:, None] - x[y == 0][None, :])
    share = float((wins + 1).mean() / 2)
    assert row["value"] == pytest.approx(max(share, 1 - share), abs=1e-9)


def _reads(plan: CeBenchPlan, key: str, split: str) -> bool:
    """Return whether a key holds the features of the autoencoder, not of its random twin, on a split."""
    task = plan.producers[key]
    role = next(role for role, output in task.outputs.items() if output == key)
    passages = plan.local[task.inputs["passages"]].build()
    return role.startswith("features/") and set(passages["split"].to_pylist()) == {split}
