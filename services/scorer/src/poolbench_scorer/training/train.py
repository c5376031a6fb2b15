"""Classifier B: training, calibration and report of a concept's scorer, on the split `scorer`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save as save_tensors
from scipy.special import log_expit

from poolbench.contracts.measures import to_rows
from poolbench.contracts.tables import MEASURES, table_from_rows
from poolbench.errors import ModelError
from poolbench.model_folders.bases import Base, find_base
from poolbench.statistics.auroc import auroc
from poolbench.steps.scorer import CONFIG, FORMAT_VERSION, REPORT, WEIGHTS, TrainParams
from poolbench_scorer.classifiers.scorer import Head, cut_model, load_classifier, read_tokens
from poolbench_scorer.classifiers.scoring import Progress
from poolbench_scorer.classifiers.windows import BaseTokenizer
from poolbench_scorer.training.examples import LabelledPassages, build_examples, read_passages, split_validation
from poolbench_scorer.training.fit import Batcher, Epoch, best_epoch, fit, frozen_batcher, margins, trained_batcher
from poolbench_scorer.training.report import Validation, build_validation, fit_temperature, report_on, to_json


@dataclass(frozen=True)
class Trained:
    """The files of a scorer and its MEASURES table."""

    files: dict[str, bytes]
    measures: pa.Table


def train_scorer(
    table: pa.Table, params: TrainParams, device: torch.device, progress: Progress | None = None
) -> Trained:
    """Train the scorer of `params.concept`.

    Args:
        table: PASSAGES of split `scorer`.
        params: Settings. The mode is `head`, `full`, or `auto`, which selects the mode by the device.
        progress: Function that is called with the number of finished epochs, of all epochs, and a note.

    Returns:
        Files (weights of the trained layers, configuration, report) and the measures `scorer.auroc`, `scorer.ece` and
        `scorer.brier`.

    Raises:
        InputError: A passage is of another split.
        CellError: `no_scorer`, `one_class` or `too_few` passages.
        ModelError: The base is unknown or not a BERT model, or the training diverged.

    Reference: the PoolBench card, Classifier B. Departures in mode head: learning rate and epochs (TrainParams).
    """
    params = params.resolved(on_gpu=device.type == "cuda")
    passages = read_passages(table, "scorer")
    base = find_base(params.base, params.revision)
    tokens = read_tokens(base)
    train_rows, held_out = split_validation(passages, params.validation_share, params.seed)
    validation = build_validation(passages.take(held_out), tokens, params)
    with torch.random.fork_rng():
        torch.manual_seed(params.seed)
        state, epochs, depth, validation_margins = _train(
            base, passages.take(train_rows), tokens, validation, params, device, progress
        )
    temperature = fit_temperature(validation_margins, validation.labels)
    layers = {} if params.num_layers is None else {"num_layers": params.num_layers}
    config = artifact_config(base, params, temperature, depth=depth, **layers)
    counts = {"num_train": len(train_rows), "num_validation": len(held_out)}
    history = {"best_epoch": epochs.index(best_epoch(epochs)) + 1, "epochs": [asdict(one) for one in epochs]}
    report = report_on(validation_margins, validation, temperature, params)
    summary = {"temperature": temperature} | report.summary() | counts | history
    files = {WEIGHTS: save_tensors(state), CONFIG: to_json(config), REPORT: to_json(summary)}
    return Trained(files, table_from_rows(to_rows(report.measures), MEASURES))


def artifact_config(base: Base, params: TrainParams, temperature: float, **own: object) -> dict[str, Any]:
    """Return the configuration that `load_scorer` reads. `own` holds the settings of one kind of scorer."""
    return {
        **own,
        "format": FORMAT_VERSION,
        "kind": params.mode,
        "concept": params.concept,
        "base": params.base,
        "base_commit": params.revision,
        "base_revision": base.revision,
        "temperature": temperature,
        "params": params.model_dump(mode="json"),
    }


def _train(
    base: Base,
    passages: LabelledPassages,
    tokens: BaseTokenizer,
    validation: Validation,
    params: TrainParams,
    device: torch.device,
    progress: Progress | None,
) -> tuple[dict[str, torch.Tensor], list[Epoch], int, np.ndarray]:
    """Return the trained tensors, the epochs, the number of frozen layers, and the validation margins."""
    model = load_classifier(base, num_labels=2)
    frozen = params.mode == "head"
    num_layers = params.num_layers or model.config.num_hidden_layers
    depth = num_layers - params.trained_layers if frozen else 0
    encoder, head = cut_model(model, depth, params.num_layers)
    encoder.to(device)
    head.to(device)
    if not frozen:
        encoder.requires_grad_(True)
    prepare = frozen_batcher if frozen else trained_batcher
    examples = build_examples(passages, tokens, params)
    held_out = prepare(encoder, validation.windows, device)
    validate = _validator(head, held_out, validation, params, progress)
    epochs = fit(model, head, prepare(encoder, examples.windows, device), examples, validate, params)
    if not all(np.isfinite(epoch.train_loss) for epoch in epochs):
        raise ModelError(
            f"training of the {params.concept} scorer diverged: lower learning_rate {params.learning_rate}"
        )
    state = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return state, epochs, depth, margins(head, held_out, validation.windows)


def _validator(
    head: Head, batcher: Batcher, validation: Validation, params: TrainParams, progress: Progress | None
) -> Callable[[], tuple[float, float]]:
    signs = np.where(validation.labels == 1, 1.0, -1.0)
    done = 0

    def validate() -> tuple[float, float]:
        nonlocal done
        validation_margins = margins(head, batcher, validation.windows)
        done += 1
        if progress is not None:
            progress(done, params.epochs or 0, f"epochs of {params.concept}")
        value = auroc(validation.labels, validation_margins)
        return value, float(-log_expit(signs * validation_margins).mean())

    return validate
