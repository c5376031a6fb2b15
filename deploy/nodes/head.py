"""`python -m deploy.nodes.head`: Ray's head on this machine, which deploys the services as workers join.

If Ray keeps the head's state in Redis (RAY_REDIS_ADDRESS), a head that ended can be started again: the workers go on
with their tasks meanwhile.
"""

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from deploy.local import apps
from deploy.local.head import answers
from deploy.nodes.ray_node import RAY_PORT, READY_PORT, add_options, command, run_node, service
from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError

HTTP = "http://0.0.0.0:8000"
_CHECK_S = 5
_RETRY_S = 60
_STOP_S = 30


def main() -> int:
    """Run the head until it ends; services are deployed again whenever one is absent or has failed."""
    parser = argparse.ArgumentParser(prog="python -m deploy.nodes.head", description=__doc__)
    parser.add_argument("services", nargs="*", type=service, help="services that may run on the head too")
    parser.add_argument("--http", default=HTTP, help="address of the services over HTTP (default: %(default)s)")
    add_options(parser)
    options = parser.parse_args()
    return run_node(lambda: _run(options))


def _run(options: argparse.Namespace) -> NoReturn:
    state = []
    if os.environ.get("RAY_REDIS_ADDRESS") and (password := _redis_password()):
        state = [f"--redis-password={password}"]
    of_head = ["--head", f"--port={RAY_PORT}", "--num-cpus=2", "--include-dashboard=false"]
    head = subprocess.Popen(command(options.address, options.services, *of_head, *state))
    threading.Thread(target=_end_with, args=(head,), daemon=True).start()
    try:
        _connect(options.address or "127.0.0.1")
        with socket.create_server(("", READY_PORT)):  # workers that came earlier would only slow the head's start
            _await_places()
            _keep_deployed(options.http)
    finally:
        head.terminate()
        head.wait(_STOP_S)


def _end_with(head: subprocess.Popen[bytes]) -> NoReturn:
    """End this process when Ray's head has ended, so that a supervisor starts both again.

    Ray's head ends if its Redis is away for longer than some seconds. Calls of Ray would wait for it for minutes.
    """
    code = head.wait()
    print(f"Ray's head ended with {code}", file=sys.stderr, flush=True)
    os._exit(code & 0xFF or Exit.FAILURES)


def _redis_password() -> str:
    """Return the password of Ray's Redis: RAY_REDIS_PASSWORD, or the content of the file RAY_REDIS_PASSWORD_PATH."""
    if password := os.environ.get("RAY_REDIS_PASSWORD", ""):
        return password
    if not (path := os.environ.get("RAY_REDIS_PASSWORD_PATH", "")):
        return ""
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"RAY_REDIS_PASSWORD_PATH is {path!r}, which cannot be read ({error.strerror}): name another file"
        ) from None


def _keep_deployed(http: str) -> NoReturn:
    from ray.exceptions import RayError

    seen: dict[str, str] = {}
    deploy_at = 0.0
    while True:
        try:
            states = apps.states()
            _print_changes(states, seen)
            missing = [app.name for app in states if app.state in ("absent", "DEPLOY_FAILED")]
            # Failed services are retried less often than they are polled.
            if missing and time.monotonic() >= deploy_at:
                deploy_at = time.monotonic() + _RETRY_S
                apps.deploy(http, missing)
        except RayError as error:  # Serve's controller starts again, on a head that came back
            print(f"Serve does not answer: {error}", file=sys.stderr)
        time.sleep(_CHECK_S)


def _print_changes(states: Iterable[apps.AppState], seen: dict[str, str]) -> None:
    """Print the services whose state differs from what was last printed, with the reason if they do not run."""
    for app in states:
        lines = [line for line in app.message.splitlines() if line.strip()]
        line = f"{app.name}: {app.state.lower()}" + (f": {lines[-1].strip()}" if lines else "")
        if seen.get(app.name) != line:
            print(line, flush=True)
        seen[app.name] = line


def _connect(host: str) -> None:
    import ray

    while not answers(host, RAY_PORT):
        time.sleep(0.5)
    while True:
        try:
            ray.init(address=f"{host}:{RAY_PORT}", namespace="serve", log_to_driver=False)
            return
        except (ConnectionError, RuntimeError):
            ray.shutdown()
            time.sleep(1)


def _await_places() -> None:
    """Wait until a worker of every service has joined, so that each can be placed."""
    import ray

    console, seen = Console(), set[str]()
    while seen != set(SERVICES):
        here = set(SERVICES) & ray.cluster_resources().keys()
        for name in sorted(here - seen):
            console.print(f"worker of the {name} has joined")
        seen = here
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
