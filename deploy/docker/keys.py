"""Tokens, passwords and keys of the containers: one file each, in `secrets/` of the state folder.

Compose mounts them at `/run/secrets`, where our processes look for settings. The folder is open to its owner only. The
files in it can be read by everybody who gets that far: the users in the containers are others than the one here, and
Compose keeps owner and mode of a file.
"""

import json
import secrets
from pathlib import Path

from deploy.docker.s3_setup import USERS
from deploy.local.state import state_folder
from poolbench.settings import PlaceSettings, S3Settings

Pair = tuple[str, str]
_TOKEN_BYTES = 32
_MODE, _FOLDER_MODE = 0o644, 0o700
_TOKENS = ("RAY_AUTH_TOKEN", "POOLBENCH_TOKEN", "REDIS_PASSWORD", "GRAFANA_PASSWORD")


def folder() -> Path:
    """Return the folder of the files."""
    return state_folder() / "secrets"


def prepare() -> None:
    """Write what is missing. Existing tokens, passwords and keys stay; those in the environment replace them."""
    folder().mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    folder().chmod(_FOLDER_MODE)
    settings = PlaceSettings.load()
    for name in _TOKENS:
        token = settings.token.get_secret_value() if name == "POOLBENCH_TOKEN" else ""
        _write(name, token or read(name) or secrets.token_hex(_TOKEN_BYTES))
    _write("POOLBENCH_TOKEN_NEXT", settings.token_next.get_secret_value() or read("POOLBENCH_TOKEN_NEXT"))
    password = read("REDIS_PASSWORD")
    _write("POOLBENCH_BROKER", f"redis://:{password}@redis:6379/1")
    # Health checks run as a user who may ping and nothing else, so that they need no password.
    check = "user health on nopass resetkeys resetchannels -@all +ping"
    _write("redis.conf", f"requirepass {password}\n{check}\nappendonly yes\ndir /data")
    pairs = _s3_keys()
    for user, pair in pairs.items():
        for kind, value in zip(("access", "secret"), pair, strict=True):
            _write(f"s3_{user}_{kind}", value)
    users = [  # root may do everything; the others what the bucket's policy says
        {
            "name": user,
            "credentials": [{"accessKey": access, "secretKey": secret}],
            "actions": ["Admin"] if user == "root" else [],
        }
        for user, (access, secret) in pairs.items()
    ]
    _write("s3.json", json.dumps({"identities": users}, indent=1))


def read(name: str) -> str:
    """Return the content of a file, empty if there is none."""
    file = folder() / name
    return file.read_text("utf-8").strip() if file.exists() else ""


def _s3_keys() -> dict[str, Pair]:
    """Return access and secret key by user: those of a service outside of Compose, or made for our own."""
    settings = S3Settings.load()
    if settings.endpoint:
        pair = settings.access_key.get_secret_value(), settings.secret_key.get_secret_value()
        return {"root": ("", ""), "driver": pair, "services": pair}
    users = ("root", *USERS)
    return {user: (f"poolbench-{user}", read(f"s3_{user}_secret") or secrets.token_hex(20)) for user in users}


def _write(name: str, content: str) -> None:
    """Write a file whose content differs. In place: a container sees the file that was mounted, not a new one."""
    file = folder() / name
    if not file.exists() or read(name) != content.strip():
        file.write_text(f"{content}\n", "utf-8")
    file.chmod(_MODE)
