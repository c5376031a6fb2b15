"""Load base encoders and published classifiers."""

from __future__ import annotations

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from poolbench.errors import ModelError
from poolbench.models.bases import Base, weight_files


def load_classifier(base: Base, *, complete: bool = False, **options: object) -> PreTrainedModel:
    """Return the base as a sequence classifier in float32, evaluation mode.

    Args:
        complete: Whether all its weights must be there; else Transformers draws those of the head at random.
        options: Settings of its configuration, such as `num_labels`.

    Raises:
        ModelError: If Transformers cannot read it, weights are missing, or some are not finite.
    """
    safe = weight_files(base.folder, base.name)[0].suffix == ".safetensors"
    try:
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            str(base.folder), dtype=torch.float32, trust_remote_code=False, local_files_only=True,
            use_safetensors=safe, output_loading_info=True, **options,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"scorer base {base.name!r} does not load as a sequence classifier: {error}") from None
    if complete and (missing := sorted(loaded["missing_keys"])):
        raise ModelError(f"{base.name!r} lacks weights of its classifier: {', '.join(missing[:4])}")
    if broken := [name for name, tensor in model.named_parameters() if not torch.isfinite(tensor).all()]:
        raise ModelError(f"{base.name!r} has weights that are not finite: {', '.join(broken[:4])}")
    return model.eval()
