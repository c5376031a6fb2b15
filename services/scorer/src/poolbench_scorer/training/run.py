"""Make a new scorer: train it, or import a published one."""

from __future__ import annotations

import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench.errors import InputError
from poolbench.steps.scorer import TrainParams
from poolbench_scorer.models.scorer import pick_device
from poolbench_scorer.models.scoring import Progress
from poolbench_scorer.training.imported import import_scorer
from poolbench_scorer.training.train import Trained, train_scorer


def run_training(passages: pa.Table | None, params: TrainParams, progress: Progress | None = None) -> Trained:
    """Train or import the scorer of one concept, on this process's device.

    Raises:
        UnknownConceptError: With the nearest valid names.
        InputError: If there are no passages. Only an import works without them.
    """
    CONCEPTS.get(params.concept)
    if params.mode == "import":
        return import_scorer(passages, params, pick_device())
    if passages is None:
        raise InputError(f"a scorer of {params.concept} needs passages to be trained on")
    return train_scorer(passages, params, pick_device(), progress)
