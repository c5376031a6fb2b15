"""Where a cluster is: its store, broker, HTTP address and token."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pydantic import SecretStr

from poolbench.errors import ConfigError
from poolbench.settings.base import Settings, setting

LOGIN_FILE = "login.json"
STATE_FOLDER = ".poolbench"
CLUSTER_FILE = "cluster.json"
NEXT_SUFFIX = "_next"
"""Name of the file of the next token, after that of the file of the token."""


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
    """Return the login of this user, or None if the user has no login. Raise ConfigError if the file cannot be read."""
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
    """Write the login atomically to a file with mode 0600, and return the path of the file."""
    path = login_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:  # its mode is 0600
        json.dump({"http": login.http, "token": login.token}, file)
    Path(file.name).replace(path)
    return path


def drop_login() -> bool:
    """Remove the login. Return whether there was a login."""
    try:
        login_path().unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class PlaceSettings(Settings):
    """Store, broker, address and token; each overrides what `cluster-up` recorded in the state folder."""

    state: Path | None = setting(
        None, "folder of token, store, queue, logs, models and `cluster.json`", unset="`.poolbench`"
    )
    store: str = setting(
        "", "object store: folder, `file://` or `s3://bucket/prefix`", unset="`<state>/store`", repr=False
    )
    broker: SecretStr = setting(
        SecretStr(""),
        "`filesystem:///absolute/folder`, `redis://[:password@]host:port/db` or `rediss://...`",
        unset="`<state>/queue`",
    )
    http: str = setting("", "address of the services, for clients", unset="what `cluster-up` recorded")
    http_port: int = setting(0, "port for `cluster-up` to use", unset="8000, or a free one", ge=0, lt=2**16)
    metrics_port: int = setting(
        0,
        "port of the [metrics](../observability.md) of a Ray node, none from 10002 to 19999",
        unset="8080; for `cluster-up` a free one if it is taken",
        ge=0,
        lt=2**16,
    )
    sensitive: bool = setting(
        False, "give out texts, vectors and scorers of [sensitive concepts](../concepts.md#sensitive-concepts)"
    )
    skip_preflight: bool = setting(
        False, "go on although [the check of this machine](cluster.md#the-check-of-the-machine) found errors"
    )
    token: SecretStr = setting(SecretStr(""), "bearer token of the services", unset="made by `cluster-up`")
    token_next: SecretStr = setting(
        SecretStr(""),
        "the token that is to replace it: [both are valid](../security.md#replacing-the-token)",
        unset="none",
    )
    secrets: Path | None = setting(
        None,
        "folder of [files named like these variables](#secrets-as-files)",
        unset="`/run/secrets` if it exists",
    )


def state_folder() -> Path:
    """Return the state folder: POOLBENCH_STATE if set, else the nearest `.poolbench` in or above the working directory.

    If there is no such folder, return the path of `.poolbench` in the working directory.
    """
    if state := PlaceSettings.load().state:
        return state.expanduser().resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / STATE_FOLDER).is_dir():
            return folder / STATE_FOLDER
    return here / STATE_FOLDER


@dataclass(frozen=True)
class ClusterSettings:
    """How to reach a cluster."""

    store_uri: str  # object store, a folder or `s3://bucket/prefix`
    broker_url: str  # `filesystem:///folder` or `redis://...`
    http_address: str = ""  # base address of the services, such as `http://127.0.0.1:8000`
    token: str = field(default="", repr=False)  # bearer token of the services; never shown
    next_token: str = field(default="", repr=False)  # the token that is to replace it, which is valid too
    http_from: str = ""  # what names the address, for messages
    token_from: str = ""  # what names the token

    @classmethod
    def load(cls, *, http_only: bool = False) -> "ClusterSettings":
        """Return the cluster that the environment names, else that of the state folder, else that of the login.

        Args:
            http_only: Whether the address of the services is enough. If so, store and broker are empty unless they are
                set.

        Raises:
            ConfigError: No source names the cluster, or a variable is wrong.
        """
        environment, recorded = PlaceSettings.load(), read_cluster(state_folder())
        store = environment.store or recorded.get("store", "")
        broker = environment.broker.get_secret_value() or recorded.get("broker", "")
        http = environment.http or recorded.get("http", "")
        login = None if store or broker else read_login()
        if login is not None and http in ("", login.http):
            path, token = str(login_path()), environment.token.get_secret_value()
            source = PlaceSettings.variable("token") if token else path
            settings = cls("", "", login.http, token or login.token, http_from=path, token_from=source)
        else:
            file = recorded.get("token_file", "")
            http_from = PlaceSettings.variable("http") if environment.http else str(state_folder() / CLUSTER_FILE)
            token_from = PlaceSettings.variable("token") if environment.token.get_secret_value() or not file else file
            settings = cls(store, broker, http, *_tokens(environment, file), http_from, token_from)
        if (store and broker) or (http_only and settings.http_address):
            return settings
        if settings.http_address:
            raise settings.lacks_queue()
        raise ConfigError(
            f"no cluster found in {state_folder()}: start one with `make cluster-up`, name one that runs with "
            "`poolbench-driver login URL`, or set POOLBENCH_STORE and POOLBENCH_BROKER (and POOLBENCH_HTTP, "
            "POOLBENCH_TOKEN)"
        )

    def lacks_queue(self) -> ConfigError:
        """Return the error for a command that needs the cluster's queue and store, not only the services' address."""
        return ConfigError(
            f"this needs the queue and the object store of the cluster, and {self.http_from} has the address of its "
            "services only: set POOLBENCH_STORE and POOLBENCH_BROKER too, or use a machine that has them"
        )

    @property
    def tokens(self) -> tuple[str, str]:
        """Return the tokens that services accept. The second token is "" unless the first is being replaced."""
        return self.token, self.next_token


def read_cluster(state: Path) -> dict[str, Any]:
    """Return the record that `cluster-up` wrote into `state`.

    If the record cannot be read, return an empty dictionary.
    """
    try:
        recorded = json.loads((state / CLUSTER_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return recorded if isinstance(recorded, dict) else {}


def _tokens(given: PlaceSettings, file: str) -> tuple[str, str]:
    """Return the token and the one that is to replace it: both as set, or both of the local cluster."""
    if token := given.token.get_secret_value():
        return token, given.token_next.get_secret_value()
    # In this order: after `mv token_next token` between the two reads, both are the new token.
    next_token = given.token_next.get_secret_value() or _read_token(file and f"{file}{NEXT_SUFFIX}")
    return _read_token(file), next_token


def _read_token(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except FileNotFoundError:
        return ""
    except PermissionError:
        raise ConfigError(f"the token file {path} is not readable: run as who started the cluster") from None
