"""The settings of the run that repeats an official table, and how another run differs from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poolbench.concepts import CONCEPTS
from poolbench.config import RunConfig, load_run_config
from poolbench.suites.official import OfficialModel, OfficialTable

#: The steering of the source: coefficients of the unit vector, ten openings, the whole prompt.
_STEERING: dict[str, Any] = {
    "budget": {
        "alpha_unit": "absolute",
        "strengths": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0],
        "null_strengths": [0.5, 1.0, 2.0],
        "reference_strength": 1.0,
        "opening_set": "published-10",
    },
    "steering": {"positions": "all"},
}


def published_settings(table: OfficialTable, model: OfficialModel, corpus: str) -> dict[str, Any]:
    """Return the settings of a run that measures the cells of a model's table.

    Args:
        corpus: Folder with the published corpus, or another source of passages. If it is no folder, or none yet, the
            concepts are those that are published, i.e. all but the sensitive ones.
    """
    metrics = {metric.partition(".")[0] for column in table.columns for metric in column.ours.values()}
    there = [name for name in table.concepts if (Path(corpus) / name).is_dir()]
    return {
        "preset": "card",
        "protocol": "published",
        "model": model.preset,
        "metrics": sorted(metrics),
        "concepts": there or [name for name in table.concepts if not CONCEPTS.get(name).sensitive],
        "strategies": [strategy.ours for strategy in table.strategies if strategy.ours],
        "layers": [model.best_layer],
        "steering_layer": model.best_layer,
        "include_bos": True,
        "scorer_base": "bert-base-uncased",
        "scorer_mode": "full",
        "corpus": {"source": corpus},
        **_STEERING,
    }


def num_steered_texts(config: RunConfig) -> int:
    """Return how many texts a run steers along strategies; null directions come on top."""
    if not {"d2", "d3"} & set(config.metrics):
        return 0
    strategies = config.strategies or ()
    return len(config.concepts) * len(strategies) * len(config.budget.strengths) * config.budget.num_openings


#: Settings that change a figure of the table.
_COMPARED = (
    "budget.num_train", "budget.num_test", "budget.strengths", "budget.alpha_unit", "budget.reference_strength",
    "budget.num_openings", "budget.opening_set", "budget.max_tokens", "steering_layer", "steering", "scorer_base",
    "scorer_mode", "include_bos", "sinks", "model_revision", "corpus.source",
)  # fmt: skip


def other_settings(config: RunConfig, wanted: dict[str, Any]) -> list[str]:
    """Return what a run does otherwise than the published one, one line per setting."""
    expected = load_run_config(None, wanted)
    lines = []
    for name in _COMPARED:
        ours, theirs = _value(config, name), _value(expected, name)
        if name == "corpus.source" and ours not in ("planted", "real"):
            continue  # a folder: it may be the published corpus
        if ours != theirs:
            shown = "the published corpus" if name == "corpus.source" else theirs
            lines.append(f"{name} is {ours}; the published run has {shown}")
    return lines


def _value(config: RunConfig, name: str) -> Any:
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found
