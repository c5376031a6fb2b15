"""Configuration: models, budgets, and the base of every section."""

from poolbench.config.base import StrictModel
from poolbench.config.budgets import BUDGETS, Budget, limited
from poolbench.config.concept import ConceptSettings
from poolbench.config.contents import content_hash, file_state
from poolbench.config.models import (
    ADAPTER_FILE,
    CARD_MODELS,
    CONVERSION_FILE,
    EMBEDDING,
    EMBEDDING_INDEX,
    FINAL,
    MODEL_PRESETS,
    LayerChoice,
    ModelRef,
    asset_path,
    assets_folder,
    change_revision,
    files_revision,
    folder_revision,
    is_hub_id,
    layer_at_depth,
    layer_index,
    local_folder,
    made_folder,
    require_unchanged,
    resolve_layers,
    resolve_model,
)
from poolbench.config.yaml_files import read_yaml

__all__ = [
    "ADAPTER_FILE",
    "BUDGETS",
    "CARD_MODELS",
    "CONVERSION_FILE",
    "EMBEDDING",
    "EMBEDDING_INDEX",
    "FINAL",
    "MODEL_PRESETS",
    "Budget",
    "ConceptSettings",
    "LayerChoice",
    "ModelRef",
    "StrictModel",
    "asset_path",
    "assets_folder",
    "change_revision",
    "content_hash",
    "file_state",
    "files_revision",
    "folder_revision",
    "is_hub_id",
    "layer_at_depth",
    "layer_index",
    "limited",
    "local_folder",
    "made_folder",
    "read_yaml",
    "require_unchanged",
    "resolve_layers",
    "resolve_model",
]
