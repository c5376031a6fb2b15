"""Configuration: models, budgets, and the base of every section."""

from poolbench.config.base import StrictModel
from poolbench.config.budgets import BUDGETS, Budget, limited
from poolbench.config.concept import ConceptSettings
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
from poolbench.config.yaml_files import read_yaml

__all__ = [
    "BUDGETS",
    "CARD_MODELS",
    "CONVERSION_FILE",
    "MODEL_PRESETS",
    "Budget",
    "ConceptSettings",
    "ModelRef",
    "StrictModel",
    "asset_path",
    "assets_folder",
    "files_revision",
    "folder_revision",
    "is_hub_id",
    "layer_at_depth",
    "limited",
    "local_folder",
    "made_folder",
    "read_yaml",
    "resolve_layers",
    "resolve_model",
]
