"""Scorers that the repository ships already trained, by the recipe `recipes/scorers`."""

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
    """Return the scorer that the repository ships under an artifact key, or None.

    The key identifies the training data and settings, but not the weights of the base model. The result is therefore
    None if this machine lacks the base or has other weights for it.
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
    """Return the tensors of a base model, by the names that they have in a scorer."""
    return load_classifier(base, num_labels=2).state_dict()
