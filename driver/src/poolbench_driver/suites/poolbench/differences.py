"""In which settings a run differs from the reference's run of the same model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.config.base import StrictModel
from poolbench_driver.config import NO_FOLDER, SCORERS, ConceptsConfig, of_concepts
from poolbench_driver.contract.load import load_run_config

#: Settings that change a published figure.
_COMPARED = (
    "budget.num_train", "budget.num_test", "budget.strengths", "budget.alpha_unit", "budget.reference_strength",
    "budget.num_openings", "budget.opening_set", "budget.max_tokens", "steering_layer", "steering", "scorer_base",
    "scorer_mode", "include_bos", "sinks", "model_revision", "corpus.source", "corpus.scorer_texts",
)  # fmt: skip


@dataclass(frozen=True)
class OtherSetting:
    """A setting in which a run differs from the reference's."""

    name: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.name} is {self.ours}; the published run has {self.theirs}"


def other_settings(config: ConceptsConfig) -> list[OtherSetting]:
    """Return the settings in which a run differs from the reference's run of the same model."""
    expected = of_concepts(load_run_config(None, {"preset": "card", "model": config.model}))
    settings = [(name, _value(config, name), _value(expected, name)) for name in _COMPARED]
    descriptions = {"corpus.source": "the published corpus"}
    return [
        OtherSetting(name, ours, descriptions.get(name, theirs))
        for name, ours, theirs in settings
        if ours != theirs and not _may_be_theirs(config, name)
    ]


def _may_be_theirs(config: ConceptsConfig, name: str) -> bool:
    """Return whether a setting that is another one may name the same: their classifiers, or a folder with a copy."""
    if name == "corpus.source":
        return config.corpus.source not in NO_FOLDER
    theirs, base = SCORERS["published"], config.scorer_base
    is_copy = base == theirs["scorer_base"] or Path(base).expanduser().is_dir()
    return name in theirs and config.scorer_mode == "import" and is_copy


def _value(config: ConceptsConfig, name: str) -> Any:
    setting: Any = config
    for part in name.split("."):
        setting = getattr(setting, part)
    return setting.model_dump(mode="json") if isinstance(setting, StrictModel) else setting
