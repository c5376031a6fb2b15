"""What runs of PoolBench start from: presets, the reference's way to measure, and kinds of scorers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poolbench.config import BUDGETS, CARD_MODELS, MODEL_PRESETS
from poolbench.errors import ConfigError

#: Block 4 of 0 to 5. It was chosen on the demo model: there, directions of most strategies change its texts; at block 3
#: the mean's do not, and at block 2 hardly any do.
DEMO_STEERING_DEPTH = 0.75
#: Greedy texts of the small model repeat themselves, and under steering they do so before they change.
DEMO_TEMPERATURE = 0.7
#: Half of the shipped base: planted concepts lie in single words, so its upper half adds time but no AUROC.
DEMO_SCORER_LAYERS = 3
#: Folder of the published corpus, `nips234678/poolbench`, as `corpus import` writes it.
PUBLISHED_CORPUS = "corpora/published"
#: The board of the card leaves out S3, which it has and which costs the states of every head.
CARD_STRATEGIES = ("card", "S3_iti_probe")
DEMO_CONCEPTS = ("causation", "contrast", "conditionality", "negation_density")
#: A pretrained model on a CPU: concepts that it carries on where a passage has them, so that scorers pass their gate.
#: The neighbours of each are among the other two, academic_tone and bureaucratic, which it carries on as well.
SMALL_MODEL = "smollm2-135m"
SMALL_CONCEPTS = ("planning", "code_docs", "numerical_precision")
SMALL_DEPTHS = (0.5, 0.75)
#: Of the grammar, which writes as many as are asked for; with half of them not every scorer passes its gate.
SMALL_SCORER_PASSAGES = 800
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


def preset_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a named preset (`demo`, `small`, `card`, `full`).

    Raise ConfigError for the card without a model in what file and command line say.
    """
    settings: dict[str, Any] = {"budget": BUDGETS[name].model_dump(mode="json"), "scorer_mode": "full"}
    if name in ("demo", "small"):
        settings |= {"steering": {"temperature": DEMO_TEMPERATURE}}
        settings |= {"scorer_mode": "head", "scorer_layers": DEMO_SCORER_LAYERS}
    if name == "demo":
        settings |= {"concepts": list(DEMO_CONCEPTS), "steering_layer": DEMO_STEERING_DEPTH}
    if name == "small":
        settings |= {
            "model": SMALL_MODEL,
            "concepts": list(SMALL_CONCEPTS),
            "strategies": list(FORWARD_STRATEGIES),
            "layers": list(SMALL_DEPTHS),
        }
        if (given.get("corpus") or {}).get("source", "planted") == "planted":
            settings["budget"] |= {"num_scorer": SMALL_SCORER_PASSAGES}
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
    """Return the layers that the reference measured and steered at; of another model none, so the defaults hold."""
    preset = MODEL_PRESETS.get(model) if isinstance(model, str) else None
    if preset is None or not preset.card_layers:
        return {}
    return {"layers": list(preset.card_layers), "steering_layer": preset.card_steering_layer}
