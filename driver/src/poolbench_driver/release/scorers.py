"""Write the scorers of a run as Transformers loads them: one folder per concept, as the reference project has them.

What was trained is joined with the weights of its base. The temperature is divided into the last layer, so that the
softmax of the logits is the score of a window.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file, save_file

from poolbench.concepts import refuse_restricted
from poolbench.errors import InputError, ModelError, NotFoundError
from poolbench.model_folders.bases import Base, find_base, weight_files
from poolbench.steps.scorer import CONFIG, FORMAT_VERSION, IMPORTED, REPORT, WEIGHTS, WINDOW_TOKENS
from poolbench_driver.dataset_folder import hub_header, write_release
from poolbench_driver.release.source import Export
from poolbench_driver.release.steered_outputs import scorer_notes

KIND = "poolbench-scorers"
META, MODEL = "meta.json", "model.safetensors"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
_LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")
#: Names that the first BERT had, which Transformers still reads.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_LEAD = (
    "Classifiers of concepts in English text, with which PoolBench reads steered texts (Classifier B). Scorers of "
    "sensitive concepts are not part of a release."
)
_READING = f"""
```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{{concept}}")
model = AutoModelForSequenceClassification.from_pretrained("{{concept}}")
logits = model(**tokenizer("However, it rained.", return_tensors="pt")).logits
score = logits.softmax(-1)[0, 1].item()  # P({{concept}})
```

This is the score of a text of up to {WINDOW_TOKENS} tokens. PoolBench cuts a longer one into even windows and averages
their scores. `meta.json` has the figures of training and the temperature: it is part of the weights of a scorer that
was trained here (`temperature_applied`). For one that was imported, the score is the sigmoid of the log odds of label
`positive` divided by the temperature.

| concept | base | kind | gate |
|---|---|---|---|"""


def export_scorers(export: Export, output: Path) -> dict[str, Any]:
    """Write the scorers of a run into `output` and return the manifest. A part is one concept.

    Raises:
        InputError: `output` holds something else, or an artifact has another format.
        ModelError: The base of a scorer is not on this machine, or has another revision.
        NotFoundError: The run is not finished, trained no scorer, or the store has none of its scorers.
    """
    stages = export.plan.steering
    if stages is None:
        raise NotFoundError(f"run {export.folder.id} measured D1 alone: it has no scorers")
    gates = scorer_notes(export.folder.tables["results"])
    missing, lines = list[dict[str, str]](), list[str]()
    with export.writing(output, KIND) as partial:
        for concept in export.concepts:
            key = stages.scorers.concepts[concept].scorer
            refuse_restricted(concept, [key])
            try:
                config = _write(export, key, partial / concept)
                gate = gates.get(concept, "none")
                lines.append(f"| {concept} | {Path(config['base']).name} | {config['kind']} | {gate} |")
            except NotFoundError as error:
                missing.append({"concept": concept, "reason": str(error)})
            export.on_part(1)
        if not lines:
            raise NotFoundError(f"run {export.folder.id} has no scorer in the store; run its command again")
        return write_release(partial, _card(export, lines), {**export.facts(KIND), "missing": missing}, {})


def _write(export: Export, key: str, folder: Path) -> dict[str, Any]:
    """Write one scorer. Return the settings of its artifact."""
    artifacts = export.artifacts
    names = artifacts.manifest(key).files
    config: dict[str, Any] = json.loads(artifacts.read(key, CONFIG))
    if config.get("format") != FORMAT_VERSION:
        raise InputError(f"scorer format {config.get('format')!r}: this version reads {FORMAT_VERSION}; train it again")
    folder.mkdir()
    if config["kind"] == "import":
        for name in names:
            if name.startswith(IMPORTED):
                (folder / Path(name).name).write_bytes(artifacts.read(key, name))
    else:
        _write_trained(artifacts.read(key, WEIGHTS), config, folder)
    settings = {name: config.get(name) for name in ("concept", "kind", "base_revision", "temperature", "positive")}
    meta = {**settings, "base": Path(config["base"]).name, "temperature_applied": config["kind"] != "import"}
    report = json.loads(artifacts.read(key, REPORT)) if REPORT in names else {}
    (folder / META).write_text(json.dumps({**meta, "report": report}, indent=1) + "\n", "utf-8")
    return config


def _write_trained(trained: bytes, config: Mapping[str, Any], folder: Path) -> None:
    """Write base and trained weights as one BertForSequenceClassification, with its configuration and tokenizer."""
    base = find_base(config["base"], config["base_commit"])
    if base.revision != config["base_revision"]:
        raise ModelError(
            f"scorer of {config['concept']} was trained on {config['base']} {config['base_revision']}, but "
            f"here it is {base.revision}; install the same weights or train it again"
        )
    settings = json.loads((base.folder / "config.json").read_text("utf-8"))
    num_layers = config.get("num_layers") or settings["num_hidden_layers"]
    tensors = {**_base_weights(base, num_layers), **load(trained)}
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = (tensors[name].astype(np.float64) / config["temperature"]).astype(np.float32)
    save_file(tensors, folder / MODEL, metadata={"format": "pt"})
    labels = {0: f"not_{config['concept']}", 1: config["concept"]}
    settings |= {
        "architectures": ["BertForSequenceClassification"],
        "num_hidden_layers": num_layers,
        "id2label": labels,
        "label2id": {label: index for index, label in labels.items()},
        "problem_type": "single_label_classification",
        "dtype": "float32",
    }
    settings.pop("_name_or_path", None)
    (folder / CONFIG).write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
    for name in _TOKENIZER_FILES:
        if (base.folder / name).is_file():
            (folder / name).write_bytes((base.folder / name).read_bytes())


def _base_weights(base: Base, num_layers: int) -> dict[str, np.ndarray]:
    """Return the encoder's tensors under the names of BertForSequenceClassification, without the layers above."""
    tensors: dict[str, np.ndarray] = {}
    for file in weight_files(base.folder, base.name):
        if file.suffix != ".safetensors":
            raise ModelError(f"{base.name!r} has its weights in {file.name}, a pickle file; convert it to safetensors")
        for name, tensor in load_file(file).items():
            for old, new in _OLD_NAMES.items():
                name = name.replace(old, new)  # noqa: PLW2901
            if name.startswith(("cls.", "classifier.")) or name.endswith("position_ids"):
                continue
            full = name if name.startswith("bert.") else f"bert.{name}"
            layer = _LAYER.match(full)
            if layer is None or int(layer.group(1)) < num_layers:
                tensors[full] = tensor.astype(np.float32)
    return tensors


def _card(export: Export, lines: list[str]) -> str:
    origin = {"scorers trained from": export.scope.config.scorer_base, "concepts": ", ".join(export.concepts)}
    reading = _READING.format(concept=export.concepts[0]).split("\n")
    header = hub_header(export.licence, pipeline_tag="text-classification", library_name="transformers")
    return export.card("Scorers", _LEAD, [*reading, *lines], header, **origin)
