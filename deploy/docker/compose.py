"""`python -m deploy.docker.compose up|down|status|run ...`: PoolBench by Docker Compose.

`run ...` passes its arguments to `poolbench-driver` in a container of the cluster's network.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rich.console import Console

from deploy.install import REQUIREMENTS, UNHASHED, pip_sources
from deploy.local.state import REPOSITORY, state_folder, write_private
from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.settings import ComposeSettings, PlaceSettings, RestrictedS3Settings, S3Settings

FOLDER = REPOSITORY / "deploy" / "docker"
WHEELS = FOLDER / "wheels"
READY_TIMEOUT_S = 900
_CONSOLE = Console()

_ACCESS_KEYS = {
    S3Settings.variable("access_key"): "poolbench",
    RestrictedS3Settings.variable("access_key"): "poolbench-restricted",
}
#: What is made at random, and how many bytes: MinIO takes secret keys of 8 to 40 characters.
_SECRETS = {
    "RAY_AUTH_TOKEN": 32,
    PlaceSettings.variable("token"): 32,
    "REDIS_PASSWORD": 32,
    "MINIO_ROOT_PASSWORD": 20,
    "GRAFANA_PASSWORD": 20,
    S3Settings.variable("secret_key"): 20,
    RestrictedS3Settings.variable("secret_key"): 20,
}


def up() -> None:
    """Build what changed, start every container and wait until all are healthy."""
    _gather_wheels()
    # One stage after another: the images share their pins, which a parallel build would install six times.
    for service in ("head", *SERVICES, "driver"):
        _CONSOLE.print(f"building {service}")
        _compose("--profile", "tools", "build", "--quiet", service)
    _CONSOLE.print("starting; this waits until every service is healthy")
    _compose("up", "--detach", "--wait", "--wait-timeout", str(READY_TIMEOUT_S))
    port = PlaceSettings.load().http_port or 8000
    for name in SERVICES:
        _CONSOLE.print(f"{name:9} http://127.0.0.1:{port}/{name}", highlight=False)
    found = ComposeSettings.load()
    if found.monitoring:
        _CONSOLE.print(f"grafana   http://127.0.0.1:{found.grafana_port} (user admin)", highlight=False)
        _CONSOLE.print(f"metrics   http://127.0.0.1:{found.prometheus_port}", highlight=False)
    _CONSOLE.print(f"tokens    in {_secrets_file()}", highlight=False)


def down() -> None:
    """Remove the containers; volumes with data and queue stay."""
    _compose("--profile", "tools", "down")


def status() -> None:
    """Print the containers, and the driver's view of services, queues and dead letters."""
    _compose("ps")
    run("status")


def run(*arguments: str) -> None:
    """Run `poolbench-driver` in the cluster's network; runs are written to `runs/` here."""
    runs = REPOSITORY / "runs"
    runs.mkdir(exist_ok=True)
    _compose("--profile", "tools", "run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "driver", *arguments)


def _compose(*arguments: str) -> None:
    profile = [] if S3Settings.load().endpoint else ["--profile", "minio"]
    if ComposeSettings.load().monitoring or arguments[-1:] == ("down",):  # containers of an earlier setting go too
        profile += ["--profile", "monitoring"]
    files = ["--file", str(FOLDER / "compose.yaml"), "--env-file", str(_secrets_file())]
    command = ["docker", "compose", *files, *profile, *arguments]
    subprocess.run(command, check=True, cwd=REPOSITORY, env={**os.environ, **_build_arguments()})


def _secrets_file() -> Path:
    """Return the file of tokens and passwords, created once for its owner only; the environment overrides each."""
    path = state_folder() / "compose.env"
    known = dict(line.split("=", 1) for line in path.read_text().splitlines()) if path.exists() else {}
    if missing := [name for name in (*_ACCESS_KEYS, *_SECRETS) if name not in known]:
        made = {name: _ACCESS_KEYS.get(name) or secrets.token_hex(_SECRETS[name]) for name in missing}
        write_private(path, "".join(f"{name}={value}\n" for name, value in {**known, **made}.items()))
    return path


@cache
def _build_arguments() -> Mapping[str, str]:
    """Return pip's package sources, for the build only; folders of this machine mean nothing inside it."""
    found: dict[str, str] = {}
    for option, values in pip_sources().items():
        remote = sorted(value for value in values if value.startswith(("http://", "https://")))
        if option != "find-links" and remote:
            found[f"PIP_{option.upper().replace('-', '_')}"] = " ".join(remote)
    return found


def _gather_wheels() -> None:
    """Copy wheels that the pins name from pip's configured folders into the build's context."""
    files = [REQUIREMENTS / "cpu.txt", REQUIREMENTS / f"cpu{UNHASHED}"]
    pins = {line.split()[0].lower() for file in files for line in file.read_text().splitlines() if line.strip()}
    for folder in map(Path, pip_sources().get("find-links", set())):
        for wheel in folder.glob("*.whl") if folder.is_dir() else ():
            name, version = wheel.name.split("-")[:2]
            if f"{name.lower().replace('_', '-')}=={version}" in pins and not (WHEELS / wheel.name).exists():
                shutil.copy(wheel, WHEELS / wheel.name)


def main() -> int:
    """Run one command."""
    commands = {"up": up, "down": down, "status": status}
    arguments = sys.argv[1:]
    try:
        if shutil.which("docker") is None:
            raise ConfigError("docker is not installed: DEPLOY=compose needs Docker with Compose v2")
        if arguments[:1] == ["run"]:
            run(*arguments[1:])
        elif len(arguments) == 1 and arguments[0] in commands:
            commands[arguments[0]]()
        else:
            raise ConfigError(f"usage: python -m deploy.docker.compose {'|'.join(commands)}|run ...")
    except PoolbenchError as error:
        _CONSOLE.print(f"[red]error[/red] {error}", soft_wrap=True)
        return Exit.USAGE
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
