"""Configuration: models, budgets and runs."""

from poolbench.config.assignments import Assignment, read_assignments
from poolbench.config.base import StrictModel
from poolbench.config.budgets import BUDGETS
from poolbench.config.concept import ConceptSettings
from poolbench.config.differences import other_settings
from poolbench.config.load import PUBLISHED_CORPUS, SCORERS, load_run_config, read_yaml
from poolbench.config.models import (
    CARD_MODELS,
    CONVERSION_FILE,
    MODEL_PRESETS,
    ModelRef,
    asset_path,
    assets_folder,
    files_revision,
    folder_revision,
    is_hub_id,
    layer_at_depth,
    local_folder,
    made_folder,
    resolve_layers,
    resolve_model,
)
from poolbench.config.run import NO_FOLDER, CorpusConfig, RunConfig, SaeConfig

__all__ = [
    "BUDGETS",
    "CARD_MODELS",
    "CONVERSION_FILE",
    "MODEL_PRESETS",
    "NO_FOLDER",
    "PUBLISHED_CORPUS",
    "SCORERS",
    "Assignment",
    "ConceptSettings",
    "CorpusConfig",
    "ModelRef",
    "RunConfig",
    "SaeConfig",
    "StrictModel",
    "asset_path",
    "assets_folder",
    "files_revision",
    "folder_revision",
    "is_hub_id",
    "layer_at_depth",
    "load_run_config",
    "local_folder",
    "made_folder",
    "other_settings",
    "read_assignments",
    "read_yaml",
    "resolve_layers",
    "resolve_model",
]
