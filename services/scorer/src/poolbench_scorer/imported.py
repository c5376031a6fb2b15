"""Published scorers: any Hugging Face sequence classifier, stored whole and calibrated on our passages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from transformers import PreTrainedModel

from poolbench.contracts.tables import MEASURES, table_from_rows
from poolbench.errors import ModelError
from poolbench.suites.measure import to_rows
from poolbench_scorer.base import find_base, load_classifier
from poolbench_scorer.calibrate import fit_temperature
from poolbench_scorer.config import TrainParams
from poolbench_scorer.examples import read_passages
from poolbench_scorer.fit import margins, trained_batcher
from poolbench_scorer.model import (
    CONFIG,
    FORMAT_VERSION,
    IMPORTED,
    REPORT,
    TokenIds,
    WholeClassifier,
    load_tokens,
)
from poolbench_scorer.train import Trained, build_validation, report_measures, to_json


def import_scorer(table: pa.Table, params: TrainParams, device: torch.device) -> Trained:
    """A published classifier as the scorer of ``params.concept``.

    Its weights are taken as they are; only the temperature is fitted, on windows of all given passages, and
    AUROC and ECE are reported on the same.

    Args:
        table: PASSAGES of split ``scorer``.
        params: ``base`` names the folder or Hugging Face id, ``subfolder`` a place inside, ``positive_label``
            the label that means the concept.
        device: Where to score.

    Raises:
        ModelError: If it is no sequence classifier, or has no such label.
    """
    passages = read_passages(table, "scorer")
    base = find_base(params.base, params.revision, params.subfolder)
    tokens = load_tokens(base)
    model = load_classifier(base)
    _require_head(model, params.base)
    positive = positive_index(model, params.positive_label)
    crown = WholeClassifier(model, positive).to(device).requires_grad_(False)
    validation = build_validation(passages, tokens, params)
    batcher = trained_batcher(TokenIds(), validation.windows, device)
    found = margins(crown, batcher, validation.windows)
    temperature = fit_temperature(found, validation.labels)
    config: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "kind": "import",
        "concept": params.concept,
        "base": params.base,
        "base_commit": params.revision,
        "base_revision": base.revision,
        "positive": positive,
        "temperature": temperature,
        "params": params.model_dump(mode="json"),
    }
    measures = report_measures(found, validation, temperature, params)
    published = {
        f"{IMPORTED}{path.name}": path.read_bytes()
        for path in sorted(base.folder.iterdir())
        if path.suffix in {".json", ".txt", ".safetensors", ".model"} and path.is_file()
    }
    report = {"auroc": measures[0].value, "ece_before": measures[1].value, "ece_after": measures[2].value}
    files = {**published, CONFIG: to_json(config), REPORT: to_json(report)}
    return Trained(files, table_from_rows(to_rows(measures), MEASURES))


def _require_head(model: PreTrainedModel, name: str) -> None:
    """Raises ModelError for an encoder without a head: Transformers would draw a random one."""
    published = model.config.architectures or []
    if not any(architecture.endswith("ForSequenceClassification") for architecture in published):
        raise ModelError(
            f"{name!r} is {', '.join(published) or 'of no declared architecture'}, no sequence classifier: "
            "import takes ...ForSequenceClassification; to train on an encoder use mode head or full"
        )


def positive_index(model: PreTrainedModel, label: str | None) -> int:
    """Index of the label that means the concept: the named one, else the last.

    Raises:
        ModelError: If there is no such label, or more than two and none is named.
    """
    labels = {str(name): int(index) for index, name in (model.config.id2label or {}).items()}
    if label is None:
        if len(labels) > 2:
            raise ModelError(f"the classifier has labels {', '.join(labels)}; name one by positive_label")
        return max(labels.values())
    if label not in labels:
        raise ModelError(f"the classifier has no label {label!r}; it has {', '.join(labels)}")
    return labels[label]
