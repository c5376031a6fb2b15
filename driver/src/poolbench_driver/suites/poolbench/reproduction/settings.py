"""The settings of the run that repeats an official table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poolbench_driver.config import ConceptsConfig
from poolbench_driver.suites.poolbench.official import OfficialModel, OfficialTable


def published_settings(table: OfficialTable, model: OfficialModel, corpus: str) -> dict[str, Any]:
    """Return the settings of a run that measures the cells of a model's table.

    Args:
        corpus: Folder with the published corpus, or another source of passages. If it is not a folder, or not yet, all
            concepts of the table are asked for.
    """
    metrics = {metric.partition(".")[0] for column in table.columns for metric in column.ours.values()}
    local_concepts = [name for name in table.concepts if (Path(corpus) / name).is_dir()]
    return {
        "preset": "card",
        "model": model.preset,
        "metrics": sorted(metrics),
        "concepts": local_concepts or list(table.concepts),
        "strategies": [strategy.ours for strategy in table.strategies if strategy.ours],
        "layers": [model.best_layer],
        "steering_layer": model.best_layer,
        "corpus": {"source": corpus},
    }


def num_steered_texts(config: ConceptsConfig) -> int:
    """Return how many texts a run steers along strategies; null directions come on top."""
    if not {"d2", "d3"} & set(config.metrics):
        return 0
    strategies = config.strategies or ()
    return len(config.concepts) * len(strategies) * len(config.budget.strengths) * config.budget.num_openings
