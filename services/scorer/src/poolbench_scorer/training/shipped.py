"""Scorers that come trained with the repository: those that `recipes/scorers` trains."""

import json
from collections.abc import Mapping

from torch import Tensor

from poolbench.config import assets_folder
from poolbench.errors import PoolbenchError
from poolbench.model_folders.bases import Base, find_base
from poolbench.steps.scorer import CONFIG, REPORT, WEIGHTS
from poolbench.storage.artifacts import TABLE_FILE, table_from_bytes
from poolbench_scorer.classifiers.scorer import load_classifier
from poolbench_scorer.training.packing import unpack
from poolbench_scorer.training.train import Trained

#: The asset's folder. It has a folder for each scorer, named by the artifact key.
SHIPPED = "scorers"
#: The weights of a scorer in its folder, as `pack` writes them.
PACKED = "differences.safetensors"


def shipped_scorer(key: str) -> Trained | None:
    """Return the scorer that the repository has under an artifact key; None if it has none.

    The key says what the scorer was trained on, and how. It does not say which weights the base had, so a scorer that
    was trained on other weights than those of this machine is left alone.
    """
    folder = assets_folder() / SHIPPED / key
    if not (folder / CONFIG).is_file():
        return None
    files = {name: (folder / name).read_bytes() for name in (CONFIG, REPORT)}
    config = json.loads(files[CONFIG])
    try:
        base = find_base(config["base"], config["base_commit"])
    except PoolbenchError:  # training says what is wrong with the base
        return None
    if base.revision != config["base_revision"]:
        return None
    files[WEIGHTS] = unpack((folder / PACKED).read_bytes(), base_tensors(base))
    return Trained(files, table_from_bytes((folder / TABLE_FILE).read_bytes()))


def base_tensors(base: Base) -> Mapping[str, Tensor]:
    """Return the tensors of a base by the names that a scorer's have."""
    return load_classifier(base, num_labels=2).state_dict()
