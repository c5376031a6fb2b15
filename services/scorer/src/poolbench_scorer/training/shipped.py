"""Scorers that come trained with the repository: those of the demo, which `recipes/demo_scorers` trains."""

import json

from poolbench.config import assets_folder
from poolbench.errors import PoolbenchError
from poolbench.model_folders.bases import find_base
from poolbench.steps.scorer import CONFIG, REPORT, WEIGHTS
from poolbench.storage.artifacts import TABLE_FILE, table_from_bytes
from poolbench_scorer.training.train import Trained

#: The asset's folder. It has a folder for each scorer, named by the artifact key.
SHIPPED = "demo_scorers"


def shipped_scorer(key: str) -> Trained | None:
    """Return the scorer that the repository has under an artifact key; None if it has none.

    The key says what the scorer was trained on, and how. It does not say which weights the base had, so a scorer that
    was trained on other weights than those of this machine is left alone.
    """
    folder = assets_folder() / SHIPPED / key
    if not (folder / CONFIG).is_file():
        return None
    files = {name: (folder / name).read_bytes() for name in (WEIGHTS, CONFIG, REPORT)}
    config = json.loads(files[CONFIG])
    try:
        if find_base(config["base"], config["base_commit"]).revision != config["base_revision"]:
            return None
    except PoolbenchError:  # training says what is wrong with the base
        return None
    return Trained(files, table_from_bytes((folder / TABLE_FILE).read_bytes()))
