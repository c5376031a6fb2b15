"""Load the settings of a run from a preset, a YAML file and the command line; errors name the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from poolbench.config.assignments import BESIDE_FIELDS, Assignment
from poolbench.config.base import StrictModel
from poolbench.config.budgets import BUDGETS, limited
from poolbench.config.models import CARD_MODELS, MODEL_PRESETS
from poolbench.config.run import CorpusConfig, RunConfig, SteeringConfig
from poolbench.errors import ConfigError, UnknownNameError, shown, unknown_name_message

#: Block 4 of 0 to 5. It was chosen on the demo model: there, directions of most strategies change its texts; at block 3
#: the mean's do not, and at block 2 hardly any do.
DEMO_STEERING_DEPTH = 0.75
#: Greedy texts of the small model repeat themselves, and under steering they do so before they change.
DEMO_TEMPERATURE = 0.7
#: Half of the shipped base: planted concepts lie in single words, so its upper half adds time but no AUROC.
DEMO_SCORER_LAYERS = 3
_MAX_VALUES = 100_000
_MAX_YAML = 1_000_000  # characters of a file of settings
_MAX_ISSUES = 20
#: Folder of the published corpus, `nips234678/poolbench`, as `corpus import` writes it.
PUBLISHED_CORPUS = "corpora/published"
#: The board of the card leaves out S3, which it has and which costs the states of every head.
CARD_STRATEGIES = ("card", "S3_iti_probe")
#: Settings of `--scorers`: fine-tuned as the card's, published ones as they are, and the encoder that ships.
SCORERS: dict[str, dict[str, Any]] = {
    "bert": {"scorer_base": "bert-base-uncased", "scorer_mode": "full"},
    "published": {
        "scorer_base": "nips234678/poolbench-bert-scorers",
        "scorer_mode": "import",
        "scorer_positive_label": "1",  # by index: the reference trains them with 1 for the concept
    },
    "minilm": {"scorer_base": "minilm", "scorer_mode": "head"},
}
DEMO_CONCEPTS = ("causation", "contrast", "conditionality", "negation_density")
#: A pretrained model on a CPU: concepts that it carries on where a passage has them, so that scorers pass their gate.
SMALL_MODEL = "smollm2-135m"
SMALL_CONCEPTS = ("numerical_precision", "bureaucratic", "academic_tone")
SMALL_DEPTHS = (0.5, 0.75)
#: The card's strategies without those that need a backward pass, or a vector of every head.
FORWARD_STRATEGIES = (
    "P1_last_token", "P2_first_token", "A1_mean", "A2_max", "A3_min", "A4_norm_weighted", "W1_first_k", "W2_last_k",
    "W3_middle_k", "W4_hierarchical", "S1_attention", "L1_pos_filtered", "L2_dependency_rel", "L3_entity", "L4_clause",
    "L5_keyword", "L6_sentence",
)  # fmt: skip


#: How the reference reads and steers, for protocol `published`: coefficients of the unit vector, ten openings, every
#: position of the prompt; BOS and attention sinks count as tokens.
PUBLISHED: dict[str, Any] = {
    "include_bos": True,
    "sinks": "include",
    "budget": {
        "alpha_unit": "absolute",
        "strengths": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0],
        "null_strengths": [0.5, 1.0, 2.0],
        "reference_strength": 1.0,
        "opening_set": "published-10",
        "num_openings": 10,
    },
    "steering": {"positions": "all"},
}


def preset(name: str) -> dict[str, Any]:
    """Return the run settings of a named preset (`demo`, `small`, `card`, `full`) as values for RunConfig."""
    if not isinstance(name, str) or name not in BUDGETS:
        raise UnknownNameError("preset", str(name), BUDGETS)
    settings: dict[str, Any] = {"budget": BUDGETS[name].model_dump(mode="json"), "scorer_mode": "full"}
    if name == "demo":
        settings |= {
            "concepts": list(DEMO_CONCEPTS),
            "steering_layer": DEMO_STEERING_DEPTH,
            "steering": {"temperature": DEMO_TEMPERATURE},
            "scorer_mode": "head",
            "scorer_layers": DEMO_SCORER_LAYERS,
        }
    if name == "small":
        settings |= {
            "model": SMALL_MODEL,
            "concepts": list(SMALL_CONCEPTS),
            "strategies": list(FORWARD_STRATEGIES),
            "layers": list(SMALL_DEPTHS),
            "steering": {"temperature": DEMO_TEMPERATURE},
            "scorer_mode": "head",
            "scorer_layers": DEMO_SCORER_LAYERS,
        }
    if name == "card":
        settings |= {
            "protocol": "published",
            "strategies": list(CARD_STRATEGIES),
            "corpus": {"source": PUBLISHED_CORPUS},
            "scorer_base": "bert-base-uncased",
        }
    return settings


def _card_layers(model: Any) -> dict[str, Any]:
    """Return the layers that the reference measured and steered at; of another model none, so the defaults hold."""
    found = MODEL_PRESETS.get(model) if isinstance(model, str) else None
    if found is None or not found.card_layers:
        return {}
    return {"layers": list(found.card_layers), "steering_layer": found.card_steering_layer}


def load_run_config(
    path: Path | None,
    overrides: dict[str, Any],
    suites: Callable[[str], Mapping[str, Any]] | None = None,
    assignments: Sequence[Assignment] = (),
) -> RunConfig:
    """Return the run configuration from YAML, command-line overrides and single settings; later ones win.

    The key `preset` names the settings to start from; `budget` is a preset name or a mapping. A mapping for a section
    needs only what differs from the preset or the default. `suites` returns the settings that a suite of this name
    starts from. Raise ConfigError, with the file and each wrong field.
    """
    layers = [
        {} if path is None else read_yaml(path, "configuration"),
        overrides,
        *(each.settings for each in assignments),
    ]
    name = next((found for layer in reversed(layers) if (found := layer.get("preset"))), None)
    merged: dict[str, Any] = preset(name) if name else {}
    suite = next((found for layer in reversed(layers) if (found := layer.get("suite"))), None)
    merged |= suites(str(suite)) if suites and suite else {}
    protocol = next((found for layer in reversed(layers) if (found := layer.get("protocol"))), merged.get("protocol"))
    reading = PUBLISHED if protocol == "published" else {}
    for layer in [reading, *layers]:
        for field, value in layer.items():
            merged[field] = _overlay(field, merged.get(field), value)
            if field == "budget" and isinstance(value, str):  # it names amounts, not how to steer
                merged[field] |= reading.get(field, {})
    merged.pop("preset", None)
    if name == "card":
        if "model" not in merged:
            raise ConfigError(f"the card measures {', '.join(CARD_MODELS)}: name one by --model, or all with commas")
        merged = {**_card_layers(merged["model"]), **merged}
    limit = _limit(merged.pop("limit", None))
    try:
        config = RunConfig.model_validate(merged)
    except ValidationError as error:
        lines = [_describe(issue) for issue in error.errors()]
        more = [f"and {len(lines) - _MAX_ISSUES} more"] if len(lines) > _MAX_ISSUES else []
        raise ConfigError(f"configuration {path or 'from flags'}: " + "; ".join(lines[:_MAX_ISSUES] + more)) from None
    return config if limit is None else config.model_copy(update={"budget": limited(config.budget, limit)})


def _limit(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ConfigError(f"limit: a whole number of passages is needed, got {shown(value)}")


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Return the settings in a YAML file by name.

    Raise ConfigError, which names the file as `what`: it is not YAML, not UTF-8, too large, or not a mapping.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_YAML + 1)
        if len(text) > _MAX_YAML:
            raise ConfigError(f"{what} {path}: settings may have at most {_MAX_YAML:,} characters")
        values = yaml.safe_load(text) or {}
        _require_few_values(values)
    except RecursionError:
        raise ConfigError(f"{what} {path}: too many levels") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # the second for dates and numbers that cannot be
        raise ConfigError(f"{what} {path}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what} {path}: expected a mapping of settings, got {type(values).__name__}")
    return {str(field): value for field, value in values.items()}


def _require_few_values(root: Any) -> None:
    """Raise ValueError for more than `_MAX_VALUES` values. A few lines of aliases can stand for billions."""
    todo, seen = [root], 0
    while todo:
        value = todo.pop()
        seen += 1
        if seen > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES:,} values, aliases included")
        if isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            todo += value


def _overlay(field: str, below: Any, value: Any) -> Any:
    """Return the new value of a field: mappings of sections are merged with `below`, other values replace it."""
    if field == "budget" and isinstance(value, str):
        return preset(value)["budget"]
    if field in _SECTIONS and isinstance(value, dict):
        return {**(below if isinstance(below, dict) else _SECTIONS[field].model_dump(mode="json")), **value}
    return value


_SECTIONS: dict[str, StrictModel] = {
    "budget": BUDGETS["demo"],
    "corpus": CorpusConfig(),
    "steering": SteeringConfig(),
}


def _describe(issue: Any) -> str:
    """Return one line on a wrong field: its path, what is wrong, the value received."""
    place = [str(part) for part in issue["loc"]]
    if issue["type"] == "extra_forbidden":
        section = _SECTIONS.get(place[0]) if len(place) > 1 else None
        return unknown_name_message("setting", ".".join(place), _field_names(section, place[:-1]))
    received = "" if isinstance(issue["input"], dict) else f", got {shown(issue['input'])}"
    return f"{'.'.join(place)}: {issue['msg']}{received}"


def _field_names(section: StrictModel | None, prefix: list[str]) -> list[str]:
    fields = RunConfig.model_fields if section is None else type(section).model_fields
    return [".".join([*prefix, name]) for name in fields] + ([] if prefix else list(BESIDE_FIELDS))
