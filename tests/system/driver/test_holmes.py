"""Entrants without a model, probed by the prober."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from driver.tests.suites.test_holmes import planned, vectors_file

from poolbench.steps import prober as steps
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.stages.example_vectors import FROM_FILE
from poolbench_driver.suites.holmes import plan as planning
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.plan import HolmesPlan, plan
from poolbench_driver.suites.holmes.rows import entrant_of
from poolbench_prober.service import create as prober


def probed_alone(made: HolmesPlan, folder: Path) -> Artifacts:
    """Fit the probes of vectors that no model of the run makes, with the service's own handler."""
    artifacts, service = Artifacts(open_store(str(folder))), prober()
    for task in made.tasks.values():
        if task.kind == steps.TASK.kind and steps.MEASURES(*FROM_FILE) in task.outputs:
            for key in task.inputs.values():
                artifacts.write_table(key, made.local[key].build())
            service.handlers[task.kind](task, TaskIO(task, artifacts))
    return artifacts


def test_vectors_of_files_and_bags_of_words_are_entrants_of_their_own(tmp_path: Path) -> None:
    """Vectors that hold the label win; words alone cannot tell the order of words."""
    sets = ("planted-bigram-shift", "planted-relation")
    plain = planned(sets=sets, control=("word_order",))
    rows = [row for data in plain.scope.data.values() for row in data.instances.to_pylist()]
    labels = sorted({row["label"] for row in rows})
    codes = np.eye(len(labels))[[labels.index(row["label"]) for row in rows]]
    path = vectors_file(tmp_path / "v.npz", [row["instance_id"] for row in rows], codes)
    config = HolmesConfig(suite="holmes", sets=sets, control=("word_order",), vectors={"mine": path}, bag_of_words=100)
    made = plan(replace(plain.scope, config=config, files=planning.files_of(config)))
    assert {at: keys for at, keys in made.probes.items() if at.vectors is None} == plain.probes
    names = {entrant_of(made.scope, at) for at in made.probes}
    assert names == {
        "demo A1_mean final", "demo/word_order A1_mean final", "vectors mine", "vectors bag_of_words 100"
    }  # fmt: skip
    assert SUITES.get("holmes").load().describe(made).lines == ["2 probing sets, 4 entrants"]

    tables = assemble(made, probed_alone(made, tmp_path / "store"), {}, "run")
    results = tables["results"].to_pylist()
    scores = {(row["entrant"], row["task"]): row["value"] for row in results if row["metric"] == "holmes.score"}
    assert {scores["vectors mine", name] for name in sets} == {1.0}
    assert scores["vectors bag_of_words 100", "planted-bigram-shift"] < 0.55
    assert scores["vectors bag_of_words 100", "planted-relation"] > 0.9
    entrants = {row["entrant"]: row for row in tables["entrants"].to_pylist()}
    columns = ("model", "strategy", "layer", "layer_name", "control", "vectors")
    assert [entrants["vectors mine"][name] for name in columns] == [None] * 5 + ["mine"]
    assert [entrants["demo A1_mean final"][name] for name in columns] == ["demo", "A1_mean", 6, "final", None, None]
    (row,) = (
        row
        for row in results
        if (row["entrant"], row["task"], row["metric"]) == ("vectors mine", sets[0], "holmes.score")
    )
    assert (row["strategy"], row["layer"], json.loads(row["params"])["vectors"]) == (None, None, "mine")
