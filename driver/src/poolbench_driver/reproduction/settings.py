"""The settings of the run that repeats an official table, and how another run differs from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poolbench.config import SCORERS, RunConfig, StrictModel, load_run_config
from poolbench.corpora.io import concept_folder
from poolbench.suites.official import OfficialModel, OfficialTable
from poolbench_driver.corpora.sources import NO_FOLDER


def published_settings(table: OfficialTable, model: OfficialModel, corpus: str) -> dict[str, Any]:
    """Return the settings of a run that measures the cells of a model's table.

    Args:
        corpus: Folder with the published corpus, or another source of passages. If it is not a folder, or not yet, all
            concepts of the table are asked for.
    """
    metrics = {metric.partition(".")[0] for column in table.columns for metric in column.ours.values()}
    there = [name for name in table.concepts if concept_folder(Path(corpus), name).is_dir()]
    return {
        "preset": "card",
        "model": model.preset,
        "metrics": sorted(metrics),
        "concepts": there or list(table.concepts),
        "strategies": [strategy.ours for strategy in table.strategies if strategy.ours],
        "layers": [model.best_layer],
        "steering_layer": model.best_layer,
        "corpus": {"source": corpus},
    }


def num_steered_texts(config: RunConfig) -> int:
    """Return how many texts a run steers along strategies; null directions come on top."""
    if not {"d2", "d3"} & set(config.metrics):
        return 0
    strategies = config.strategies or ()
    return len(config.concepts) * len(strategies) * len(config.budget.strengths) * config.budget.num_openings


#: Settings that change a published figure.
_COMPARED = (
    "budget.num_train", "budget.num_test", "budget.strengths", "budget.alpha_unit", "budget.reference_strength",
    "budget.num_openings", "budget.opening_set", "budget.max_tokens", "steering_layer", "steering", "scorer_base",
    "scorer_mode", "include_bos", "sinks", "model_revision", "corpus.source",
)  # fmt: skip


@dataclass(frozen=True)
class OtherSetting:
    """A setting in which a run differs from the reference's."""

    name: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.name} is {self.ours}; the published run has {self.theirs}"


def other_settings(config: RunConfig) -> list[OtherSetting]:
    """Return the settings in which a run differs from the reference's run of the same model."""
    expected = load_run_config(None, {"preset": "card", "model": config.model})
    apart = [OtherSetting(name, _value(config, name), _value(expected, name)) for name in _COMPARED]
    return [_shown(each) for each in apart if each.ours != each.theirs and not _may_be_theirs(config, each.name)]


def _may_be_theirs(config: RunConfig, name: str) -> bool:
    """Return whether a setting that is another one may name the same: a copy of the corpus, or their classifiers."""
    if name == "corpus.source":
        return config.corpus.source not in NO_FOLDER
    return name in SCORERS["published"] and config.scorer_mode == "import"


def _shown(setting: OtherSetting) -> OtherSetting:
    return replace(setting, theirs="the published corpus") if setting.name == "corpus.source" else setting


def _value(config: RunConfig, name: str) -> Any:
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found.model_dump(mode="json") if isinstance(found, StrictModel) else found
