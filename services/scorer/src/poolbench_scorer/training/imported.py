"""Published scorers: any Hugging Face sequence classifier, stored whole and calibrated on our passages."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from transformers import PreTrainedModel

from poolbench.contracts.tables import MEASURES, table_from_rows
from poolbench.errors import CellError, ModelError
from poolbench.statuses import Status
from poolbench.steps.scorer import WINDOW_TOKENS, TrainParams
from poolbench.suites.measure import Measure, to_rows
from poolbench_scorer.models.base import Base, load_classifier, locate, locate_tokenizer, weight_files
from poolbench_scorer.models.scorer import (
    CONFIG,
    FORMAT_VERSION,
    IMPORTED,
    REPORT,
    TokenIds,
    WholeClassifier,
    read_tokens,
)
from poolbench_scorer.models.windows import Tokens
from poolbench_scorer.training.calibrate import fit_temperature
from poolbench_scorer.training.examples import Passages, read_passages
from poolbench_scorer.training.fit import margins, trained_batcher
from poolbench_scorer.training.labels import Positive, positive_output
from poolbench_scorer.training.report import Report, build_validation, report_on, to_json
from poolbench_scorer.training.train import Trained

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model", "spiece.model")


def import_scorer(table: pa.Table | None, params: TrainParams, device: torch.device) -> Trained:
    """A published classifier as the scorer of ``params.concept``.

    Its weights are taken as they are; only the temperature is fitted, on windows of all given passages, and
    the figures are reported on the same. Without enough passages it stays 1 and the figures are null.

    Args:
        table: PASSAGES of split ``scorer``; may be empty or None.
        params: ``base`` names the folder or Hugging Face id, ``subfolder`` a place inside, ``positive_label``
            the label that means the concept.
        device: Where to score.

    Raises:
        LabelNeededError: If it has several labels and ``positive_label`` is not given.
        ModelError: If it is no complete sequence classifier, has no such label, or reads fewer than 130 tokens.
        InputError: If passages are of another split.
    """
    base = locate(params.base, params.revision, params.subfolder)
    _require_head(base)
    tokens = read_tokens(tokenizer_of(base, params))
    model = load_classifier(base, complete=True)
    _require_fit(model, tokens, params.base)
    positive = positive_output(model.config, params.positive_label, params.concept)
    head = WholeClassifier(model, positive.index, positive.independent).to(device).requires_grad_(False)
    temperature, report = _calibrate(head, tokens, table, params, device)
    files = {**_published(base, model, tokens), CONFIG: to_json(_config(base, params, positive, temperature))}
    summary = {"positive_label": positive.label, "temperature": temperature} | report.summary()
    files[REPORT] = to_json(summary | _doubt(report, positive))
    return Trained(files, table_from_rows(to_rows(report.measures), MEASURES))


def tokenizer_of(base: Base, params: TrainParams) -> Base:
    """The base whose tokenizer the classifier reads with: the named one, its own, or the one above its folder.

    Raises:
        ModelError: If there is none.
    """
    if params.tokenizer is not None:
        return Base(params.tokenizer, locate_tokenizer(params.tokenizer), base.revision)
    for folder in (base.folder, base.folder.parent)[: 1 + bool(params.subfolder)]:
        if any((folder / name).is_file() for name in _TOKENIZER_FILES):
            return Base(base.name, folder, base.revision)
    raise ModelError(f"{params.base!r} has no tokenizer; name the base it was trained on as tokenizer")


def _calibrate(
    head: WholeClassifier, tokens: Tokens, table: pa.Table | None, params: TrainParams, device: torch.device
) -> tuple[float, Report]:
    """The temperature, and the figures on the same windows."""
    try:
        if table is None:
            raise CellError(Status.NO_SCORER, "imported without passages: neither calibrated nor measured")
        passages: Passages = read_passages(table, "scorer")
    except CellError as error:
        names = ("scorer.auroc", "scorer.ece", "scorer.brier")
        return 1.0, Report([Measure.failed(name, error, scorer=params.concept) for name in names])
    validation = build_validation(passages, tokens, params)
    found = margins(head, trained_batcher(TokenIds(), validation.windows, device), validation.windows)
    temperature = fit_temperature(found, validation.labels)
    return temperature, report_on(found, validation, temperature, params)


def _config(base: Base, params: TrainParams, positive: Positive, temperature: float) -> dict[str, Any]:
    return {
        "format": FORMAT_VERSION,
        "kind": "import",
        "concept": params.concept,
        "base": params.base,
        "base_commit": params.revision,
        "base_revision": base.revision,
        "positive": positive.index,
        "independent": positive.independent,
        "temperature": temperature,
        "params": params.model_dump(mode="json"),
    }


def _published(base: Base, model: PreTrainedModel, tokens: Tokens) -> Mapping[str, bytes]:
    """The classifier's files; pickled weights become safetensors, so that nobody unpickles them again."""
    with tempfile.TemporaryDirectory(prefix="poolbench-import-") as scratch:
        tokens.tokenizer.save_pretrained(scratch)
        if weight_files(base.folder, base.name)[0].suffix == ".safetensors":
            folders = [Path(scratch), base.folder]
        else:
            model.save_pretrained(scratch)
            folders = [Path(scratch)]
        return {
            f"{IMPORTED}{path.name}": path.read_bytes()
            for folder in folders
            for path in sorted(folder.iterdir())
            if path.suffix in {".json", ".txt", ".safetensors", ".model"} and path.is_file()
        }


def _require_head(base: Base) -> None:
    """Raises ModelError for an encoder without a classification head."""
    published = json.loads((base.folder / "config.json").read_text("utf-8")).get("architectures") or []
    if not any(architecture.endswith("ForSequenceClassification") for architecture in published):
        raise ModelError(
            f"{base.name!r} is {', '.join(published) or 'of no declared architecture'}, no sequence classifier: "
            "import takes ...ForSequenceClassification; to train on an encoder use mode head or full"
        )


def _require_fit(model: PreTrainedModel, tokens: Tokens, name: str) -> None:
    """Raises ModelError for a classifier that our windows or its tokenizer's ids do not fit into."""
    room, needed = getattr(model.config, "max_position_embeddings", None), len(tokens.wrap(())) + WINDOW_TOKENS
    if room is not None and room < needed:
        raise ModelError(f"{name!r} reads {room} tokens; windows have up to {needed}")
    if len(tokens.tokenizer) > model.config.vocab_size:
        raise ModelError(
            f"{name!r} has {model.config.vocab_size} token embeddings, its tokenizer {len(tokens.tokenizer)} tokens: "
            "that is another model's tokenizer"
        )


def _doubt(report: Report, positive: Positive) -> dict[str, str]:
    """A note where the classifier works, but the other way round."""
    auroc = report.measures[0]
    if auroc.ci_high is None or auroc.ci_high >= 0.5:
        return {}
    return {"note": f"AUROC {auroc.value:.3f}, below chance: is {positive.label} really the label of the concept?"}
