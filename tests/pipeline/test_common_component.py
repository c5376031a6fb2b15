"""S4 from texts to D1 on the demo model, through the plan and the services' own handlers, without a cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from poolbench.config import asset_path
from poolbench.contracts.tables import vector_matrix
from poolbench.pooling.registry import STRATEGIES
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import annotator_version, describe_model
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan, make_plan

LAYER = 3
SETTINGS: dict[str, Any] = {
    "preset": "demo",
    "concepts": ["contrast", "causation"],
    "metrics": ["d1"],
    "layers": [LAYER],
    "budget": {"num_train": 40, "num_test": 20, "num_bootstrap": 50},
}


Finished = tuple[PoolBenchPlan, Artifacts, Counter[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of the mean and S4 over two concepts."""
    from poolbench_extractor.service import create as extractor
    from poolbench_pooler.service import create as pooler
    from poolbench_prober.service import create as prober

    handlers = {**extractor().handlers, **pooler().handlers, **prober().handlers}
    artifacts, config = Artifacts(FolderStore(tmp_path_factory.mktemp("store"))), load_run_config(None, SETTINGS)
    model = describe_model(config, None)  # type: ignore[arg-type]  # a local model: nobody is asked
    specs = [STRATEGIES.get(name) for name in ("A1_mean", "S4_sif")]
    plan = make_plan(Scope(config, model, specs, annotator_version("annotator")))
    for step in plan.local.values():
        artifacts.write_table(step.key, step.build())
    for task in plan.tasks.values():
        io = TaskIO(task, artifacts)
        handlers[task.kind](task, io)
        assert not io.missing
    return plan, artifacts, Counter(task.kind for task in plan.tasks.values())


def test_what_the_run_consists_of(finished: Finished) -> None:
    assert finished[2] == {
        "extractor.count": 1, "pooler.annotate": 4, "extractor.extract": 4, "prober.component": 1, "prober.probe": 4,
    }  # fmt: skip


def test_vectors_are_the_weighted_means_of_the_states(finished: Finished) -> None:
    """One passage a concept, from its token ids and the states of the model as Transformers gives them."""
    import torch
    from transformers import AutoModelForCausalLM

    plan, artifacts, _ = finished
    folder = Path(asset_path("demo_lm"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).float()
    trains = [
        artifacts.read_table(cells.passages["train"])["text"].to_pylist() for cells in plan.vectors.concepts.values()
    ]
    counts = Counter(
        t for texts in trains for text in texts for t in tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    total = sum(counts.values())
    for cells in plan.vectors.concepts.values():
        text = artifacts.read_table(cells.passages["test"])["text"][0].as_py()
        batch = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
        real = ~batch.pop("special_tokens_mask")[0].bool().numpy()
        with torch.inference_mode():
            h_TD = model(**batch, output_hidden_states=True).hidden_states[LAYER + 1][0].double().numpy()[real]
        ids = batch["input_ids"][0].numpy()[real]
        weights = np.array([1e-3 / (1e-3 + counts[int(token)] / total) for token in ids])
        table = artifacts.read_table(cells.vectors["test", "S4_sif", LAYER])
        np.testing.assert_allclose(vector_matrix(table["vector"])[0], weights @ h_TD / len(ids), rtol=1e-4, atol=1e-5)


def test_directions_are_free_of_the_component_of_both_concepts(
    finished: Finished,
) -> None:
    plan, artifacts, _ = finished
    keys = [cells.vectors["train", "S4_sif", LAYER] for cells in plan.vectors.concepts.values()]
    stacked = np.vstack([vector_matrix(artifacts.read_table(key)["vector"]) for key in keys]).astype(np.float64)
    first = np.linalg.svd(stacked, full_matrices=False)[2][0]
    component = vector_matrix(artifacts.read_table(plan.components.keys["S4_sif", LAYER])["vector"])[0]
    assert abs(component @ first) == pytest.approx(1, abs=1e-6)
    for cells in plan.probes.concepts.values():
        table = artifacts.read_table(cells.directions["S4_sif", LAYER])
        matrix = vector_matrix(table["vector"])[table["direction_id"].to_pylist().index("C1")]
        assert abs(matrix @ first) < 1e-5
    rows = assemble(plan, artifacts, {}, "run")["results"].to_pylist()
    found = {(r["concept"], r["strategy"]): r for r in rows if r["metric"] == "d1.auroc"}
    assert len(found) == 4 and {row["status"] for row in found.values()} == {"ok"}
    assert all(found[concept, "S4_sif"]["value"] > 0.5 for concept in plan.probes.concepts)
