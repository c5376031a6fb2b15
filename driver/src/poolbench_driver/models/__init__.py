"""Models: what planning needs to know of one, and those that are fetched and converted on this machine.

Nothing here imports Transformers before a conversion begins.
"""

from poolbench_driver.models.conversion import make_model, obtain
from poolbench_driver.models.describe import (
    MODEL_LICENCES,
    ModelInfo,
    annotator_version,
    describe,
    describe_model,
    model_folder,
    model_type,
)
