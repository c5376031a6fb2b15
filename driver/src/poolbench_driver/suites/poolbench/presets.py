"""What runs of PoolBench start from: presets and kinds of scorers; and how a run differs from the reference's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.config import BUDGETS, CARD_MODELS, MODEL_PRESETS, is_pretrained
from poolbench.config.base import StrictModel
from poolbench.errors import ConfigError
from poolbench_driver.config import NAMED_SOURCES, SCORERS, ConceptsConfig, of_concepts
from poolbench_driver.contract.load import load_run_config

#: Block 4 of 0 to 5. It was chosen on the demo model: there, directions of most strategies change its texts; at block 3
#: the mean's do not, and at block 2 hardly any do.
DEMO_STEERING_DEPTH = 0.75
#: Greedy texts of the small model repeat themselves, and under steering they do so before they change.
DEMO_TEMPERATURE = 0.7
#: Half of the shipped base: planted concepts lie in single words, so its upper half adds time but no AUROC.
DEMO_SCORER_LAYERS = 3
#: Folder of the published corpus, `nips234678/poolbench`, as `corpus import` writes it.
PUBLISHED_CORPUS = "corpora/published"
#: Published tables that ship with this package.
TABLES = ("official",)
#: The board of the card leaves out S3, which it has and which costs the states of every head.
CARD_STRATEGIES = ("card", "S3_iti_probe")
#: Fewer than the budget `demo`, so that the first report comes soon. The budget stays as it is: runs of other suites
#: are named by it.
DEMO_BUDGET = {"num_openings": 10}
DEMO_CONCEPTS = ("causation", "contrast", "conditionality", "negation_density")
#: A pretrained model on a CPU: concepts that it carries on where a passage has them, so that scorers pass their gate.
#: The neighbours of each are among the other two, academic_tone and bureaucratic, which it carries on as well.
SMALL_MODEL = "smollm2-135m"
SMALL_CONCEPTS = ("planning", "code_docs", "numerical_precision")
SMALL_DEPTHS = (0.5, 0.75)
#: Of real text, three that pass their audit with few passages, and that the model carries on where a vector says so;
#: words such as `because` it writes too seldom for D2 to move. Of academic_tone, which domains confound, D3 reads the
#: scorer alone.
REAL_CONCEPTS = ("code_docs", "numerical_precision", "narrative")
#: Shorter texts, and as few continuations as part b of the gate reads, so that two cores need minutes.
REAL_BUDGET = {"max_tokens": 24, "num_continuations": 60}
#: Of the grammar, which writes as many as are asked for; with half of them not every scorer passes its gate.
SMALL_SCORER_PASSAGES = 800
#: What demo and small measure: the card's strategies without those that need a vector of every head, or a backward
#: pass, which costs as much on a CPU as the other 17 together.
FORWARD_STRATEGIES = (
    "P1_last_token", "P2_first_token", "A1_mean", "A2_max", "A3_min", "A4_norm_weighted", "W1_first_k", "W2_last_k",
    "W3_middle_k", "W4_hierarchical", "S1_attention", "L1_pos_filtered", "L2_dependency_rel", "L3_entity", "L4_clause",
    "L5_keyword", "L6_sentence",
)  # fmt: skip


#: How the reference reads and steers, for protocol `published`: coefficients of the unit vector, ten openings, every
#: position of the prompt; BOS and attention sinks count as tokens; every opening at every strength.
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
    "steering": {"positions": "all", "reading": "whole"},
}


def preset_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a named preset (`demo`, `small`, `card`, `full`).

    Raise ConfigError for the preset `card` if `given`, the settings of file and command line, has no model.
    """
    settings: dict[str, Any] = {"budget": BUDGETS[name].model_dump(mode="json"), "scorer_mode": "full"}
    if name in ("demo", "small"):
        settings |= {"steering": {"temperature": DEMO_TEMPERATURE}}
        settings |= {"scorer_mode": "head", "scorer_layers": DEMO_SCORER_LAYERS}
        settings |= {"strategies": list(FORWARD_STRATEGIES)}
    if name == "demo":
        settings |= {"concepts": list(DEMO_CONCEPTS), "steering_layer": DEMO_STEERING_DEPTH}
        settings["budget"] |= DEMO_BUDGET
    if name == "small":
        settings |= {
            "model": SMALL_MODEL,
            "concepts": list(SMALL_CONCEPTS),
            "layers": list(SMALL_DEPTHS),
        }
        by_default = "real" if is_pretrained(given.get("model", SMALL_MODEL)) else "planted"
        source = (given.get("corpus") or {}).get("source", by_default)
        if source == "planted":
            settings["budget"] |= {"num_scorer": SMALL_SCORER_PASSAGES}
        if source == "real":
            settings |= {"concepts": list(REAL_CONCEPTS)}
            settings["budget"] |= REAL_BUDGET
    if name == "card":
        settings |= {
            "protocol": "published",
            "strategies": list(CARD_STRATEGIES),
            "corpus": {"source": PUBLISHED_CORPUS},
            "scorer_base": "bert-base-uncased",
        }
        if "model" not in given:
            raise ConfigError(f"the card measures {', '.join(CARD_MODELS)}: name one by --model, or all with commas")
        settings = _card_layers(given["model"]) | settings
    return settings


def _card_layers(model: Any) -> dict[str, Any]:
    """Return the layers at which the reference measured and steered a model.

    For a model without such layers, return no settings, so that the defaults apply.
    """
    preset = MODEL_PRESETS.get(model) if isinstance(model, str) else None
    if preset is None or not preset.card_layers:
        return {}
    return {"layers": list(preset.card_layers), "steering_layer": preset.card_steering_layer}


#: Settings that change a published figure.
_COMPARED = (
    "budget.num_train", "budget.num_test", "budget.strengths", "budget.alpha_unit", "budget.reference_strength",
    "budget.num_openings", "budget.opening_set", "budget.max_tokens", "steering_layer", "steering", "scorer_base",
    "scorer_mode", "include_bos", "sinks", "model_revision", "corpus.source", "corpus.scorer_texts",
)  # fmt: skip


@dataclass(frozen=True)
class OtherSetting:
    """A setting in which a run differs from the run of the published reference."""

    name: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.name} is {self.ours}; the published run has {self.theirs}"


def other_settings(config: ConceptsConfig) -> list[OtherSetting]:
    """Return the settings in which a run differs from the published reference run of the same model."""
    expected = of_concepts(load_run_config(None, {"preset": "card", "model": config.model}))
    settings = [(name, _value(config, name), _value(expected, name)) for name in _COMPARED]
    descriptions = {"corpus.source": "the published corpus"}
    return [
        OtherSetting(name, ours, descriptions.get(name, theirs))
        for name, ours, theirs in settings
        if ours != theirs and not _may_be_theirs(config, name)
    ]


def _may_be_theirs(config: ConceptsConfig, name: str) -> bool:
    """Return whether a setting with another value may still name the classifiers or corpus of the reference.

    For example, the setting may name a folder with a copy.
    """
    if name == "corpus.source":
        return config.corpus.source not in NAMED_SOURCES
    theirs, base = SCORERS["published"], config.scorer_base
    is_copy = base == theirs["scorer_base"] or Path(base).expanduser().is_dir()
    return name in theirs and config.scorer_mode == "import" and is_copy


def _value(config: ConceptsConfig, name: str) -> Any:
    setting: Any = config
    for part in name.split("."):
        setting = getattr(setting, part)
    return setting.model_dump(mode="json") if isinstance(setting, StrictModel) else setting
