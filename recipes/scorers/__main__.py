"""`python -m recipes.scorers`: train the scorers that ship into `assets/scorers`, and remove older ones.

They are what the tasks `scorer.train` make of `run --preset demo`, and of `run --preset small` on all clean concepts of
the corpus of real text, with packed weights. The scorer service takes them where it would train
(`poolbench_scorer.training.shipped`). Needs no cluster, and about half a minute of one core for each.
"""

import json
import os
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from poolbench.config import ModelRef, assets_folder
from poolbench.contracts.tasks import Task
from poolbench.model_folders.bases import find_base
from poolbench.steps import scorer as steps
from poolbench.steps.scorer import CONFIG, REPORT, WEIGHTS
from poolbench.storage.artifacts import TABLE_FILE, table_to_bytes
from poolbench_driver.config import of_concepts
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.corpora.sources import absent_concepts, all_concepts
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import make_plan
from poolbench_driver.stages.scope import Scope, neighbours_of, resolve_names
from poolbench_driver.stages.stage import Plan
from poolbench_scorer.training.packing import pack
from poolbench_scorer.training.shipped import PACKED, SHIPPED, base_tensors
from poolbench_scorer.training.train import Trained, train_scorer

#: What the scorers are called when a service lists them.
NOTE = "trained with the repository, by recipes/scorers"


def plans() -> list[Plan]:
    """Return the plans whose scorers ship. A scorer does not depend on the model that is measured."""
    demo = {"preset": "demo"}
    small = {"preset": "small", "concepts": all_concepts("real")}
    return [_plan(settings) for settings in (demo, small)]


def _plan(settings: dict[str, Any]) -> Plan:
    config, strategies = resolve_names(of_concepts(load_run_config(None, settings)))
    model = ModelInfo(ModelRef(config.model, "nowhere", "any", "float32"), num_blocks=6, width=256)
    return make_plan(Scope(config, model, tuple(strategies), absent=absent_concepts(config, neighbours_of(config))))


def training_tasks() -> dict[str, tuple[Plan, Task]]:
    """Return the task that trains each scorer, and its plan, by the scorer's artifact key."""
    return {
        task.outputs[steps.SCORER()]: (plan, task)
        for plan in plans()
        for task in plan.tasks.values()
        if task.kind == steps.TRAIN.kind
    }


def train(plan: Plan, task: Task) -> Trained:
    """Train the scorer of a task as its service would."""
    passages = plan.local[task.inputs[steps.SCORER_PASSAGES()]].build()
    assert isinstance(passages, pa.Table)
    return train_scorer(passages, steps.TRAIN.params_of(task), torch.device("cpu"))


def write(scorer: Trained, folder: Path) -> None:
    """Write a scorer's files and measures into a folder, with packed weights and a note in its report."""
    config = json.loads(scorer.files[CONFIG])
    report = json.dumps(json.loads(scorer.files[REPORT]) | {"note": NOTE}, indent=2, sort_keys=True).encode()
    packed = pack(scorer.files[WEIGHTS], base_tensors(find_base(config["base"], config["base_commit"])))
    files = {CONFIG: scorer.files[CONFIG], REPORT: report, PACKED: packed, TABLE_FILE: table_to_bytes(scorer.measures)}
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def main() -> int:
    """Train what is missing, and remove the scorers that no plan asks for."""
    tasks, asset = training_tasks(), assets_folder() / SHIPPED
    for folder in asset.iterdir() if asset.is_dir() else ():
        if folder.is_dir() and folder.name not in tasks:
            shutil.rmtree(folder)
    for key, (plan, task) in tasks.items():
        if not (asset / key).is_dir():
            print(f"training the scorer of {task.params['concept']}", flush=True)
            write(train(plan, task), asset / key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
