"""Classifier B: training of one concept's scorer on the scorer split, its calibration, its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save as save_tensors
from scipy.special import expit, log_expit

from poolbench.contracts.tables import MEASURES, table_from_rows
from poolbench.errors import ModelError
from poolbench.suites.measure import Measure, to_rows
from poolbench_scorer.auroc import CI_METHOD, grouped_auroc, weighted_auroc
from poolbench_scorer.base import Base, find_base, load_classifier
from poolbench_scorer.calibrate import expected_calibration_error, fit_temperature
from poolbench_scorer.config import TrainParams
from poolbench_scorer.core import Progress
from poolbench_scorer.encoder import Crown
from poolbench_scorer.examples import Passages, build_examples, read_passages, split_validation
from poolbench_scorer.fit import Batcher, Epoch, best_epoch, fit, frozen_batcher, margins, trained_batcher
from poolbench_scorer.model import CONFIG, FORMAT_VERSION, REPORT, WEIGHTS, cut_model, load_tokens
from poolbench_scorer.windows import Tokens, draw, training_windows


@dataclass(frozen=True)
class Validation:
    """Generation-like windows of the held-out passages."""

    windows: list[tuple[int, ...]]
    labels: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True)
class Trained:
    """A scorer's files and its MEASURES."""

    files: dict[str, bytes]
    measures: pa.Table


def train_scorer(
    table: pa.Table, params: TrainParams, device: torch.device, progress: Progress | None = None
) -> Trained:
    """Trains the scorer of ``params.concept``.

    Args:
        table: PASSAGES of split ``scorer``.
        params: Settings; mode ``head`` or ``full``, or ``auto``, which takes the device's.
        device: Where to train.
        progress: Told (epochs done, epochs in all, note).

    Returns:
        Files (weights of what was trained, config, report) and the measures ``scorer.auroc``, ``scorer.ece``.

    Raises:
        CellError: ``one_class`` or ``too_few`` passages.
        ModelError: If the base is unknown or no BERT.

    Reference: the PoolBench card, Classifier B. Departures in mode head: learning rate and epochs (TrainParams).
    """
    params = params.resolved(on_gpu=device.type == "cuda")
    passages = read_passages(table, "scorer")
    base = find_base(params.base, params.revision)
    tokens = load_tokens(base)
    train_rows, held_out = split_validation(passages, params.validation_share, params.seed)
    validation = build_validation(passages.take(held_out), tokens, params)
    with torch.random.fork_rng():
        torch.manual_seed(params.seed)
        state, epochs, depth, found = _train(
            base, passages.take(train_rows), tokens, validation, params, device, progress
        )
    temperature = fit_temperature(found, validation.labels)
    config = {
        "format": FORMAT_VERSION,
        "kind": params.mode,
        "concept": params.concept,
        "base": params.base,
        "base_commit": params.revision,
        "base_revision": base.revision,
        "depth": depth,
        "temperature": temperature,
        "params": params.model_dump(mode="json"),
    }
    counts = {"num_train": len(train_rows), "num_validation": len(held_out)}
    summary = counts | {
        "best_epoch": epochs.index(best_epoch(epochs)) + 1,
        "epochs": [asdict(one) for one in epochs],
    }
    measures = report_measures(found, validation, temperature, params)
    return Trained(pack(save_tensors(state), config, summary, measures), table_from_rows(to_rows(measures), MEASURES))


def build_validation(passages: Passages, tokens: Tokens, params: TrainParams) -> Validation:
    """Generation-like windows of passages; a text as short as they are gives one window."""
    windows, rows = [], []
    for row, content in enumerate(tokens.content(passages.texts)):
        rng = draw(params.seed, passages.pairs[row] or passages.ids[row])
        cut = dict.fromkeys(training_windows(content, rng, params.num_windows, params.window_tokens)[1:])
        windows += [tokens.wrap(window) for window in cut]
        rows += [row] * len(cut)
    return Validation(windows, passages.labels[rows], passages.groups[rows])


def report_measures(
    found: np.ndarray, validation: Validation, temperature: float, params: TrainParams
) -> list[Measure]:
    """``scorer.auroc`` with its interval, and ``scorer.ece`` before and after calibration."""
    labels = validation.labels
    auroc = grouped_auroc(found, labels, validation.groups, num_bootstrap=params.num_bootstrap, seed=params.seed)
    fields: dict[str, Any] = {
        "scorer": params.concept,
        "n": len(labels),
        "num_groups": auroc.num_groups,
        "seed": params.seed,
    }
    measures = [Measure.of("scorer.auroc", auroc.value, auroc.interval, ci_method=CI_METHOD, **fields)]
    for calibrated, divisor in ((False, 1.0), (True, temperature)):
        error = expected_calibration_error(expit(found / divisor), labels)
        measures.append(Measure.of("scorer.ece", error, params={"calibrated": calibrated}, **fields))
    return measures


def pack(
    weights: bytes, config: Mapping[str, Any], summary: Mapping[str, Any], measures: list[Measure]
) -> dict[str, bytes]:
    """The files of a trained scorer."""
    auroc, before, after = measures
    report = {
        "auroc": auroc.value,
        "auroc_ci": [auroc.ci_low, auroc.ci_high],
        "ece_before": before.value,
        "ece_after": after.value,
        "temperature": config["temperature"],
        **summary,
    }
    return {WEIGHTS: weights, CONFIG: to_json(config), REPORT: to_json(report)}


def to_json(value: Any) -> bytes:
    """Readable JSON with sorted keys."""
    return json.dumps(value, indent=2, sort_keys=True).encode()


def _train(
    base: Base,
    passages: Passages,
    tokens: Tokens,
    validation: Validation,
    params: TrainParams,
    device: torch.device,
    progress: Progress | None,
) -> tuple[dict[str, torch.Tensor], list[Epoch], int, np.ndarray]:
    """Trained tensors, epochs, number of frozen layers, and the margins of the validation windows."""
    model = load_classifier(base, num_labels=2)
    head = params.mode == "head"
    depth = model.config.num_hidden_layers - params.trained_layers if head else 0
    trunk, crown = cut_model(model, depth)
    trunk.to(device)
    crown.to(device)
    if not head:
        trunk.requires_grad_(True)
    prepare = frozen_batcher if head else trained_batcher
    examples = build_examples(passages, tokens, params)
    held_out = prepare(trunk, validation.windows, device)
    validate = _validator(crown, held_out, validation, params, progress)
    epochs = fit(model, crown, prepare(trunk, examples.windows, device), examples, validate, params)
    if not all(np.isfinite(epoch.train_loss) for epoch in epochs):
        raise ModelError(
            f"training of the {params.concept} scorer diverged: lower learning_rate {params.learning_rate}"
        )
    state = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return state, epochs, depth, margins(crown, held_out, validation.windows)


def _validator(
    crown: Crown, batcher: Batcher, validation: Validation, params: TrainParams, progress: Progress | None
) -> Callable[[], tuple[float, float]]:
    signs = np.where(validation.labels == 1, 1.0, -1.0)
    done = 0

    def validate() -> tuple[float, float]:
        nonlocal done
        found = margins(crown, batcher, validation.windows)
        done += 1
        if progress is not None:
            progress(done, params.epochs or 0, f"epochs of {params.concept}")
        value = float(weighted_auroc(found, validation.labels, np.ones((1, len(found))))[0])
        return value, float(-log_expit(signs * found).mean())

    return validate
