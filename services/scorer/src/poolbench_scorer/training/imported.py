"""Published scorers: Hugging Face sequence classifiers, stored whole and calibrated on our passages."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
from transformers import PretrainedConfig, PreTrainedModel

from poolbench.concepts import CONCEPTS
from poolbench.contracts.measures import Measure, to_rows
from poolbench.contracts.tables import MEASURES, table_from_rows
from poolbench.errors import CellError, InputError, ModelError
from poolbench.model_folders.bases import Base, locate, locate_tokenizer, weight_files
from poolbench.statuses import Status
from poolbench.steps.scorer import CONFIG, IMPORTED, REPORT, WINDOW_TOKENS, TrainParams
from poolbench_scorer.classifiers import scorer as checkpoints
from poolbench_scorer.classifiers.scorer import load_classifier, pick_device
from poolbench_scorer.classifiers.scoring import Progress
from poolbench_scorer.classifiers.windows import BaseTokenizer
from poolbench_scorer.training.examples import LabelledPassages, read_passages
from poolbench_scorer.training.fit import margins, trained_batcher
from poolbench_scorer.training.report import Report, build_validation, fit_temperature, report_on, to_json
from poolbench_scorer.training.train import Trained, artifact_config, train_scorer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model", "spiece.model")


def import_scorer(table: pa.Table | None, params: TrainParams, device: torch.device) -> Trained:
    """Import a published classifier as the scorer of `params.concept`.

    The weights are not changed. Only the temperature is fitted, on windows of all given passages, and the measures are
    computed on these windows too. Without enough passages, the temperature is 1 and the measures are null.

    Args:
        table: PASSAGES of split `scorer`, which may be empty, or None.
        params: `base` is the folder or Hugging Face id, `subfolder` the folder inside, and `positive_label` the label
            that means the concept.

    Raises:
        LabelNeededError: The classifier has several labels, and `positive_label` is not given.
        ModelError: The model is not a complete sequence classifier, is a regression, has no such label, reads too few
            tokens for a window of 128 with its special tokens, or has no tokenizer that fits.
        InputError: Passages are of another split.
    """
    base = locate(params.base, params.revision, params.subfolder)
    published = json.loads((base.folder / "config.json").read_text("utf-8")).get("architectures") or []
    if not any(architecture.endswith("ForSequenceClassification") for architecture in published):
        raise ModelError(
            f"{base.name!r} is {', '.join(published) or 'of no declared architecture'}, no sequence classifier: "
            "import takes ...ForSequenceClassification; to train on an encoder use mode head or full"
        )
    tokens = checkpoints.read_tokens(tokenizer_of(base, params))
    model = load_classifier(base, complete=True)
    room, needed = getattr(model.config, "max_position_embeddings", None), len(tokens.wrap(())) + WINDOW_TOKENS
    if room is not None and room < needed:
        raise ModelError(f"{params.base!r} reads {room} tokens; windows have up to {needed}")
    if (num_tokens := len(tokens.tokenizer)) > model.config.vocab_size:
        raise ModelError(
            f"{params.base!r} has {model.config.vocab_size} token embeddings, its tokenizer {num_tokens} tokens: "
            "that is another model's tokenizer"
        )
    positive = positive_output(model.config, params.positive_label, params.concept)
    head = checkpoints.WholeClassifier(model, positive.index, positive.independent).to(device).requires_grad_(False)
    temperature, report = _calibrate(head, tokens, table, params, device)
    head_fields = {"positive": positive.index, "independent": positive.independent}
    config = artifact_config(base, params, temperature, **head_fields)
    files = {**_published(base, model, tokens), CONFIG: to_json(config)}
    summary = {"positive_label": positive.label, "temperature": temperature} | report.summary()
    auroc = report.measures[0]
    if auroc.ci_high is not None and auroc.ci_high < 0.5:  # it works with the opposite label
        question = f"is {positive.label} really the label of the concept?"
        summary["note"] = f"AUROC {auroc.value:.3f}, below chance: {question}"
    files[REPORT] = to_json(summary)
    return Trained(files, table_from_rows(to_rows(report.measures), MEASURES))


def tokenizer_of(base: Base, params: TrainParams) -> Base:
    """Return the folder of the tokenizer, as a `Base`.

    It is the tokenizer that `params` names, else the classifier's own, else the one above its subfolder. Raise
    ModelError if there is none.
    """
    if params.tokenizer is not None:
        return Base(params.tokenizer, locate_tokenizer(params.tokenizer), base.revision)
    for folder in (base.folder, base.folder.parent)[: 1 + bool(params.subfolder)]:
        if any((folder / name).is_file() for name in _TOKENIZER_FILES):
            return Base(base.name, folder, base.revision)
    raise ModelError(f"{params.base!r} has no tokenizer; name the base it was trained on as tokenizer")


def _calibrate(
    head: checkpoints.WholeClassifier,
    tokens: BaseTokenizer,
    table: pa.Table | None,
    params: TrainParams,
    device: torch.device,
) -> tuple[float, Report]:
    """Return the fitted temperature, and the report on the windows used for the fit."""
    try:
        if table is None:
            raise CellError(Status.NO_SCORER, "imported without passages: neither calibrated nor measured")
        passages: LabelledPassages = read_passages(table, "scorer")
    except CellError as error:
        names = ("scorer.auroc", "scorer.ece", "scorer.brier")
        return 1.0, Report([Measure.failed(name, error, scorer=params.concept) for name in names])
    validation = build_validation(passages, tokens, params)
    validation_margins = margins(
        head, trained_batcher(checkpoints.TokenIds(), validation.windows, device), validation.windows
    )
    temperature = fit_temperature(validation_margins, validation.labels)
    return temperature, report_on(validation_margins, validation, temperature, params)


def _published(base: Base, model: PreTrainedModel, tokens: BaseTokenizer) -> Mapping[str, bytes]:
    """Return the files of the classifier. Pickled weights are converted to safetensors, to avoid later unpickling."""
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


class LabelNeededError(ModelError):
    """A published classifier has several labels, and `positive_label` was not given."""

    code = "label_needed"


@dataclass(frozen=True)
class Positive:
    """The output of a classifier that means the concept.

    Attributes:
        independent: Whether the logit of this output is the log odds of the concept. True for one output or for labels
            that do not exclude one another. If False, this label competes with all other labels.
    """

    index: int
    label: str
    independent: bool


def positive_output(config: PretrainedConfig, stated: str | None, concept: str) -> Positive:
    """Return the output that means the concept.

    Args:
        stated: Label or index of the output, in which `{concept}` stands for the concept, or None.

    Raises:
        LabelNeededError: `stated` is None, and the classifier has several labels.
        ModelError: The classifier is a regression or has no such label.
    """
    labels = {int(index): str(name) for index, name in (config.id2label or {}).items()}
    if config.problem_type == "regression":
        raise ModelError("the classifier is a regression: its output is not a probability of a concept")
    if stated is None:
        if len(labels) > 1:
            raise LabelNeededError(
                f"the classifier has the labels {_listed(labels)}; state which one means {concept} as positive_label"
            )
        return Positive(0, labels[0], independent=True)
    index = _index(labels, stated.replace("{concept}", concept))
    independent = len(labels) == 1 or config.problem_type == "multi_label_classification"
    return Positive(index, labels[index], independent)


def _index(labels: dict[int, str], label: str) -> int:
    """Return the index of a label.

    An exact match comes first, then a match that ignores case, then the number as an index. Raise ModelError if no
    label matches.
    """
    exact = [index for index, name in labels.items() if name == label]
    matches = exact or [index for index, name in labels.items() if name.lower() == label.lower()]
    if len(matches) == 1:
        return matches[0]
    if not matches and label.isdecimal() and int(label) in labels:
        return int(label)
    raise ModelError(f"the classifier has no label {label!r}; it has {_listed(labels)}")


def _listed(labels: dict[int, str]) -> str:
    return ", ".join(f"{name} ({index})" for index, name in sorted(labels.items()))


def run_training(passages: pa.Table | None, params: TrainParams, progress: Progress | None = None) -> Trained:
    """Train or import a scorer on this process's device. Raise InputError if training has no passages."""
    CONCEPTS.get(params.concept)
    if params.mode == "import":
        return import_scorer(passages, params, pick_device())
    if passages is None:
        raise InputError(f"a scorer of {params.concept} needs passages to be trained on")
    return train_scorer(passages, params, pick_device(), progress)
