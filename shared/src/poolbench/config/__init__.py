"""Configuration: models, budgets, and the base of every section."""

from poolbench.config.base import ConceptSettings, StrictModel, read_yaml
from poolbench.config.budgets import (
    BUDGETS,
    Budget,
    NamedBudget,
    PassagesBudget,
    ProbesBudget,
    ResampledBudget,
    amounts,
    completed,
    limited,
    preset_of,
)
from poolbench.config.contents import content_hash
from poolbench.config.models import (
    ADAPTER_FILE,
    CARD_MODELS,
    CONVERSION_FILE,
    EMBEDDING,
    EMBEDDING_INDEX,
    FINAL,
    MODEL_PRESETS,
    MOVING_STARTS,
    REAL_CORPUS,
    LayerChoice,
    ModelRef,
    asset_path,
    assets_folder,
    change_revision,
    files_revision,
    folder_revision,
    is_hub_id,
    is_pretrained,
    layer_at_depth,
    layer_index,
    local_folder,
    made_folder,
    require_unchanged,
    resolve_layers,
    resolve_model,
)
