"""Which folders of models an HTTP request may name.

A model is named by a preset, by its Hugging Face id, or by a folder. The token of a service does not permit a client to
open any folder of the operator's machine. A request may name a folder below one of POOLBENCH_MODEL_FOLDERS, or one that
is listed in the state folder of a local cluster, where `poolbench-driver` writes the argument of `--model FOLDER`.
Tasks from the queue are not checked, because their broker is trusted.
"""

import os
from collections.abc import Callable, Collection
from pathlib import Path

from poolbench.config.models import MODEL_PRESETS, ModelRef, is_hub_id, local_folder, resolve_model
from poolbench.errors import ModelError, UnknownModelError, shown
from poolbench.settings import FolderSettings, state_folder

MODEL_FOLDERS = FolderSettings.variable("model_folders")
_LIST = "model-folders"


def requested_model(model: str, *, revision: str | None = None, dtype: str | None = None) -> ModelRef:
    """Return the model that a request names: `resolve_model`, restricted to permitted folders.

    Raise UnknownModelError with the nearest presets, or ModelError for a folder that is not allowed.
    """
    require_permitted(model, MODEL_PRESETS)
    return resolve_model(model, revision=revision, dtype=dtype)


def require_permitted(name: str, presets: Collection[str], is_id: Callable[[str], bool] = is_hub_id) -> None:
    """Refuse a model name that stands for a folder which requests may not name.

    Raises:
        UnknownModelError: The name is not a preset, an id or a folder. The message has the nearest presets.
        ModelError: The folder is not allowed, whether or not it exists.
    """
    if name in presets:
        return
    folder = local_folder(name)
    if folder is None and not Path(name).is_absolute():
        if is_id(name):
            return
        raise UnknownModelError(name, presets)
    if not _permitted(folder or Path(name)):
        raise ModelError(
            f"folder {shown(name)} may not be named by requests; allowed are folders below those that the operator "
            f"lists in {MODEL_FOLDERS}, and on a local cluster those that `poolbench-driver` is given"
        )


def list_folder(name: str) -> str:
    """Return the model name that a client on the operator's machine sends.

    A folder is first listed for the services.
    """
    folder = None if name in MODEL_PRESETS else local_folder(name)
    if folder is None:
        return name
    file = state_folder() / _LIST
    if file.parent.is_dir() and folder not in _listed():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as lines:
            lines.write(f"{folder}\n")
    return str(folder)


def _permitted(folder: Path) -> bool:
    """Return whether requests may name a folder; links are followed first."""
    try:
        place = folder.resolve()
    except (OSError, RuntimeError, ValueError):
        return False
    roots = [root.expanduser().resolve() for root in FolderSettings.load().model_folders]
    return any(place.is_relative_to(root) for root in [*roots, *_listed()])


def _listed() -> list[Path]:
    """Return the folders that the user of a local cluster named."""
    try:
        return [Path(line) for line in (state_folder() / _LIST).read_text("utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError):
        return []
