"""`python -m tests.servers.gated STATE`: a Ray of its own with the gate and one service, until stdin is closed."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deploy.local import head
from deploy.local.state import Cluster, new_cluster, save
from tests.pages import REPOSITORY

from poolbench.errors import ConfigError, EndpointError

#: Few, so that a test can take them all.
NUM_RUNNING = 2


@contextmanager
def started(module: str, state: Path, **environment: str) -> Iterator[dict[str, str]]:
    """Run `python -m MODULE STATE`, which calls `keep_up`; yield the places that it prints."""
    variables = {**os.environ, "POOLBENCH_STATE": str(state), "PYTHONPATH": str(REPOSITORY), **environment}
    command, log = [sys.executable, "-m", module, str(state)], state / "started.log"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=variables, cwd=REPOSITORY, stderr=errors, **pipes) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = next((line for line in lines if line.startswith("{")), "")
        assert found, log.read_text()[-3000:]
        yield json.loads(found)
        process.stdin.close()


def main() -> None:
    """Start everything, and end it with stdin."""
    options = {"module": "tests.servers.exploding", "max_ongoing_requests": NUM_RUNNING}
    keep_up("prober", places, **options)


def places(cluster: Cluster) -> dict[str, str]:
    """Return where its test finds metrics, messages and logs."""
    logs = f"{cluster.ray_temp}/session_latest/logs"
    return {"metrics": cluster.metrics, "broker": cluster.broker, "logs": logs}


def keep_up(service: str, describe: Callable[[Cluster], dict[str, str]], **options: Any) -> None:
    """Start a cluster with one service, print where it is, and end it when stdin is closed."""
    cluster = start(Path(sys.argv[1]))
    try:
        _deploy(cluster.http, service, options)
        reached = {"http": cluster.http, "token": Path(cluster.token_file).read_text()}
        print(json.dumps(reached | describe(cluster)), flush=True)
        sys.stdin.read()
    except BaseException:
        traceback.print_exc()  # now: this process ends with its Ray
        raise
    finally:
        head.stop(cluster, print)


def start(state: Path, attempts: int = 3) -> Cluster:
    """A running head; Ray gives its node 30 s to come in, which a machine short of CPU may need twice."""
    cluster = new_cluster(state)
    try:
        head.start(cluster, state)
        save(state, cluster)
        head.connect(cluster, wait_s=head.START_TIMEOUT_S)
    except (ConfigError, EndpointError):
        head.stop(cluster, print)
        if attempts == 1:
            raise
        return start(state, attempts - 1)
    return cluster


def _deploy(http: str, service: str, options: dict[str, Any]) -> None:
    from ray import serve

    from poolbench.runtime.serve import build_app

    address = urlsplit(http)
    serve.start(http_options={"host": address.hostname, "port": address.port, "location": "HeadOnly"})
    serve.run(build_app(service, **options), name=service, route_prefix=f"/{service}")


if __name__ == "__main__":
    main()
