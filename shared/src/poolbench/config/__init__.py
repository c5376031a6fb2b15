"""Configuration: models, and the base of every section."""

from poolbench.config.base import StrictModel
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

__all__ = [
    "CARD_MODELS",
    "CONVERSION_FILE",
    "MODEL_PRESETS",
    "ConceptSettings",
    "ModelRef",
    "StrictModel",
    "asset_path",
    "assets_folder",
    "files_revision",
    "folder_revision",
    "is_hub_id",
    "layer_at_depth",
    "local_folder",
    "made_folder",
    "resolve_layers",
    "resolve_model",
]
