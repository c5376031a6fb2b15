"""Load base encoders and published classifiers."""

from __future__ import annotations

import re

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from poolbench.errors import ModelError
from poolbench.models.bases import Base, weight_files

#: What is trained where a checkpoint lacks it.
_TRAINED = re.compile(r"^classifier\.|\.pooler\.")


def load_classifier(base: Base, *, complete: bool = False, **options: object) -> PreTrainedModel:
    """Return the base as a sequence classifier in float32, evaluation mode.

    Args:
        complete: Whether all its weights must be there; else Transformers draws those of pooler and head at random,
            which training replaces.
        options: Settings of its configuration, such as `num_labels`.

    Raises:
        ModelError: If Transformers cannot read it, weights are missing, or some are not finite.
    """
    safe = weight_files(base.folder, base.name)[0].suffix == ".safetensors"
    try:
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            str(base.folder), dtype=torch.float32, trust_remote_code=False, local_files_only=True,
            use_safetensors=safe, output_loading_info=True, disable_mmap=True, **options,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"scorer base {base.name!r} does not load as a sequence classifier: {error}") from None
    missing = [name for name in sorted(loaded["missing_keys"]) if complete or not _TRAINED.search(name)]
    if missing:
        others = sorted(loaded["unexpected_keys"])[:1]
        instead = f"; it has others that the model does not have, such as {others[0]}" if others else ""
        raise ModelError(f"{base.name!r} lacks weights of its classifier: {', '.join(missing[:4])}{instead}")
    if broken := [name for name, tensor in model.named_parameters() if not torch.isfinite(tensor).all()]:
        raise ModelError(f"{base.name!r} has weights that are not finite: {', '.join(broken[:4])}")
    return model.eval()
