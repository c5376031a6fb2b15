"""Settings from files: a mounted folder of secrets, with one file per variable."""

from __future__ import annotations

import os
from pathlib import Path

from poolbench.errors import ConfigError

PREFIX = "POOLBENCH_"
#: The variable that names the folder. It is read before any other setting.
FOLDER_VARIABLE = f"{PREFIX}SECRETS"
#: Where Docker mounts secrets.
DEFAULT_FOLDER = Path("/run/secrets")


def read_files() -> dict[str, str]:
    """Return the stripped content of each file of ours in the folder of secrets, by the name of its variable.

    Raises:
        ConfigError: The named folder does not exist, or a file in it cannot be read.
    """
    folder = _folder()
    if folder is None:
        return {}
    try:
        files = [file for file in folder.iterdir() if file.name.upper().startswith(PREFIX) and file.is_file()]
    except OSError as error:
        remedy = f"let the user of this process read it, or name another folder in {FOLDER_VARIABLE}"
        raise ConfigError(f"the folder of secrets {folder} cannot be read ({error.strerror}): {remedy}") from None
    return {file.name: _content(file) for file in files}


def _folder() -> Path | None:
    if not (name := os.environ.get(FOLDER_VARIABLE)):
        return DEFAULT_FOLDER if os.path.isdir(DEFAULT_FOLDER) else None
    folder = Path(name).expanduser()
    if not os.path.isdir(folder):  # the method of Path raises an error below a folder that may not be entered
        raise ConfigError(
            f"{FOLDER_VARIABLE} is {name!r}, which is not a folder that this process may enter: name the folder with "
            "one file per secret, or unset it"
        )
    return folder


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"secret {file} cannot be read ({error.strerror}): let the user of this process read it"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"secret {file} is not UTF-8 text: write the value of the variable as text") from None
