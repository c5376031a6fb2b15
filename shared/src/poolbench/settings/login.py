"""The cluster that `poolbench-driver login` keeps for this user: address and token, in a file for its owner only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from poolbench.errors import ConfigError

LOGIN_FILE = "login.json"


@dataclass(frozen=True)
class Login:
    """The address of a cluster's services, and the token that they accept."""

    http: str
    token: str = field(repr=False)


def login_path() -> Path:
    """Return where the login lies: below `$XDG_CONFIG_HOME`, or `~/.config`."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "poolbench" / LOGIN_FILE


def read_login() -> Login | None:
    """Return the login of this user; None if there is none. Raise ConfigError if it cannot be read."""
    path = login_path()
    try:
        record = json.loads(path.read_text("utf-8"))
        return Login(str(record["http"]), str(record["token"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): correct its rights, or remove it") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ConfigError(f"{path} is damaged: `poolbench-driver login URL` writes it again") from None


def keep_login(login: Login) -> Path:
    """Write the login with mode 0600, whole or not at all; return its path."""
    path = login_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:  # its mode is 0600
        json.dump({"http": login.http, "token": login.token}, file)
    Path(file.name).replace(path)
    return path


def drop_login() -> bool:
    """Remove the login; return whether there was one."""
    try:
        login_path().unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
