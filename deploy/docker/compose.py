"""`python -m deploy.docker.compose up|down|status|build|run ...`: PoolBench by Docker Compose.

`run ...` passes its arguments to `poolbench-driver` in a container of the cluster's network.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rich.console import Console

from deploy.docker import keys
from deploy.install import REQUIREMENTS, UNHASHED, pip_sources
from deploy.local.state import REPOSITORY
from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.settings import ComposeSettings, PlaceSettings, S3Settings

FOLDER = REPOSITORY / "deploy" / "docker"
WHEELS = FOLDER / "wheels"
READY_TIMEOUT_S = 900
_CONSOLE = Console()

#: What holds logs and caches of containers that are gone.
SCRATCH = "poolbench.scratch=yes"
NODES = ("head", *SERVICES)


def up() -> None:
    """Build what changed, start every container and wait until all are healthy."""
    keys.prepare()
    build()
    _CONSOLE.print("starting; this waits until every service is healthy")
    own_s3 = not S3Settings.load().endpoint
    _compose("up", "--detach", "--wait", "redis", *(["s3"] if own_s3 else []))
    if own_s3:
        _compose("--profile", "tools", "run", "--rm", "s3-setup")
    _compose("up", "--detach", "--wait", "--wait-timeout", str(READY_TIMEOUT_S))
    port = PlaceSettings.load().http_port or 8000
    for name in SERVICES:
        _CONSOLE.print(f"{name:9} http://127.0.0.1:{port}/{name}", highlight=False)
    settings = ComposeSettings.load()
    if settings.monitoring:
        _CONSOLE.print(f"grafana   http://127.0.0.1:{settings.grafana_port} (user admin)", highlight=False)
        _CONSOLE.print(f"metrics   http://127.0.0.1:{settings.prometheus_port}", highlight=False)
    _CONSOLE.print(f"tokens    in {keys.folder()}", highlight=False)


def build() -> None:
    """Build every image whose parts changed."""
    # Wheels that the pins name go from pip's configured folders into the build's context.
    files = [REQUIREMENTS / "cpu.txt", REQUIREMENTS / f"cpu{UNHASHED}"]
    pins = {line.split()[0].lower() for file in files for line in file.read_text().splitlines() if line.strip()}
    for folder in map(Path, pip_sources().get("find-links", set())):
        for wheel in folder.glob("*.whl") if folder.is_dir() else ():
            name, version = wheel.name.split("-")[:2]
            if f"{name.lower().replace('_', '-')}=={version}" in pins and not (WHEELS / wheel.name).exists():
                shutil.copy(wheel, WHEELS / wheel.name)
    # One after another: the images share layers, which a parallel build would make several times.
    for service in (*NODES, "driver", *([] if S3Settings.load().endpoint else ["s3"])):
        _CONSOLE.print(f"building {service}")
        _compose("--profile", "tools", "build", "--quiet", service)


def down() -> None:
    """Remove the containers; volumes with data, queue and models stay."""
    _compose("stop", *NODES)
    # The state of Ray's head goes from Redis: the next `up` starts with new containers. Without Redis this fails.
    command = ["docker", "compose", "--project-name", "poolbench", "exec", "--no-TTY", "--env", "REDISCLI_AUTH"]
    environment = {**os.environ, "REDISCLI_AUTH": keys.read("REDIS_PASSWORD")}
    flush = [*command, "redis", "redis-cli", "-n", "0", "FLUSHDB"]
    subprocess.run(flush, check=False, capture_output=True, env=environment)
    _compose("--profile", "tools", "down", "--remove-orphans")
    filters = [f"label={SCRATCH}", "label=com.docker.compose.project=poolbench"]
    listed = ["docker", "volume", "ls", "--quiet", *(part for condition in filters for part in ("--filter", condition))]
    if scratch := subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split():
        subprocess.run(["docker", "volume", "rm", *scratch], check=True, stdout=subprocess.DEVNULL)


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
    everything = arguments[-2:-1] == ("down",)  # containers of an earlier setting go too
    profile = ["--profile", "s3"] if everything or not S3Settings.load().endpoint else []
    profile += ["--profile", "monitoring"] if everything or ComposeSettings.load().monitoring else []
    command = ["docker", "compose", "--file", str(FOLDER / "compose.yaml"), *profile, *arguments]
    image = ["docker", "image", "inspect", "--format", "{{.Id}}", "poolbench/head"]
    image_id = subprocess.run(image, check=False, capture_output=True, text=True).stdout.strip()
    # A head of other code must not restore the services of the one before.
    variables = {"SECRETS_FOLDER": str(keys.folder()), "HEAD_IMAGE_ID": image_id.removeprefix("sha256:")[:12] or "none"}
    if s3_image := ComposeSettings.load().s3_image:
        variables["S3_IMAGE"] = s3_image
    subprocess.run(command, check=True, cwd=REPOSITORY, env={**os.environ, **_build_arguments(), **variables})


@cache
def _build_arguments() -> Mapping[str, str]:
    """Return pip's package sources, for the build only; folders of this machine mean nothing inside it."""
    arguments: dict[str, str] = {}
    for option, values in pip_sources().items():
        remote = sorted(value for value in values if value.startswith(("http://", "https://")))
        if option != "find-links" and remote:
            arguments[f"PIP_{option.upper().replace('-', '_')}"] = " ".join(remote)
    return arguments


def main() -> int:
    """Run one command."""
    commands = {"up": up, "down": down, "status": status, "build": build}
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
