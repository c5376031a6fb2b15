"""`python -m recipes.demo_scorers`: train the scorers of the demo into `assets/demo_scorers`, and remove older ones.

They are what the tasks `scorer.train` of `run --preset demo` would make, with the weights in float16. The scorer
service takes them where it would train (`poolbench_scorer.training.shipped`). Needs no cluster, and about 4 minutes of
one core.
"""

import json
import os
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load, save

from poolbench.config import ModelRef, assets_folder
from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import select_strategies
from poolbench.steps import scorer as steps
from poolbench.steps.scorer import REPORT, WEIGHTS
from poolbench.storage.artifacts import TABLE_FILE, table_to_bytes
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan
from poolbench_driver.suites.poolbench.plan import make_plan
from poolbench_scorer.training.shipped import SHIPPED
from poolbench_scorer.training.train import Trained, train_scorer

#: What the scorers are called when a service lists them.
NOTE = "trained with the repository, by recipes/demo_scorers"


def demo_plan() -> Plan:
    """Return the plan of the demo. Its scorers do not depend on the model that is measured."""
    model = ModelInfo(ModelRef("demo", "nowhere", "any", "float32"), num_blocks=6, width=256)
    return make_plan(Scope(load_run_config(None, {"preset": "demo"}), model, select_strategies()))


def training_tasks(plan: Plan) -> Iterator[tuple[str, Task]]:
    """Yield the artifact key of each scorer, and the task that trains it."""
    for task in plan.tasks.values():
        if task.kind == steps.TRAIN.kind:
            yield task.outputs[steps.SCORER()], task


def trained(plan: Plan, task: Task) -> Trained:
    """Train the scorer of a task as its service would, with the weights in float16."""
    passages = plan.local[task.inputs[steps.SCORER_PASSAGES()]].build()
    scorer = train_scorer(passages, steps.TRAIN.params_of(task), torch.device("cpu"))
    weights = {name: tensor.half() for name, tensor in load(scorer.files[WEIGHTS]).items()}
    report = json.dumps(json.loads(scorer.files[REPORT]) | {"note": NOTE}, indent=2, sort_keys=True).encode()
    return Trained({**scorer.files, WEIGHTS: save(weights), REPORT: report}, scorer.measures)


def write(scorer: Trained, folder: Path) -> None:
    """Write a scorer's files and measures into a folder."""
    folder.mkdir(parents=True)
    for name, content in {**scorer.files, TABLE_FILE: table_to_bytes(scorer.measures)}.items():
        (folder / name).write_bytes(content)


def main() -> int:
    """Train what is missing, and remove the scorers of earlier demos."""
    plan, asset = demo_plan(), assets_folder() / SHIPPED
    tasks = dict(training_tasks(plan))
    for folder in asset.iterdir() if asset.is_dir() else ():
        if folder.is_dir() and folder.name not in tasks:
            shutil.rmtree(folder)
    for key, task in tasks.items():
        if not (asset / key).is_dir():
            print(f"training the scorer of {task.params['concept']}", flush=True)
            write(trained(plan, task), asset / key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
