"""Loads tokenizers that give character offsets; everything else is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from poolbench.config import ModelRef
from poolbench.errors import ModelError
from poolbench.settings import ExtractorSettings

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def load_tokenizer(ref: ModelRef, settings: dict[str, Any]) -> Any:
    """The fast tokenizer of a model.

    Args:
        ref: Where the model comes from.
        settings: Revision and trust, as ``from_pretrained`` takes them.

    Raises:
        ModelError: If there is none, it cannot be read, or it gives no offsets.
    """
    if ref.is_local and not any((Path(ref.source) / name).is_file() for name in _FILES):
        raise ModelError(
            f"model folder {ref.source} holds no tokenizer (none of {', '.join(_FILES)}); "
            "save the tokenizer beside the weights with save_pretrained"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(ref.source, **settings)
    except (OSError, ValueError, ImportError) as error:
        raise unreadable(f"tokenizer of {ref.source}", error) from error
    if not tokenizer.is_fast:
        raise ModelError(f"tokenizer of {ref.source} gives no character offsets; a fast tokenizer is needed")
    return tokenizer


def unreadable(what: str, error: Exception) -> ModelError:
    """The error of something that ``from_pretrained`` refused, in one line."""
    if "trust_remote_code" in str(error):  # Transformers raises a plain ValueError
        return ModelError(
            f"{what} brings code of its own, which runs only where the operator allows it "
            f"({ExtractorSettings.variable('trust_remote_code')}=1)"
        )
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ModelError(f"{what} cannot be loaded: {first_line}")
