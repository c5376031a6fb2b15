"""`python -m deploy.docker.head`: Ray's head inside its container, which deploys the services as workers join."""

import logging
import socket
import subprocess
import sys
import time

from deploy.docker.node import READY_PORT, answers
from deploy.local import apps
from poolbench.contracts.wire import METRICS_PORT, SERVICES
from poolbench.errors import EndpointError
from poolbench.telemetry.logs import configure_logging

_LOG = logging.getLogger("poolbench.cluster")
HTTP = "http://0.0.0.0:8000"
_HEAD = ["ray", "start", "--head", "--block", "--port=6379", "--num-cpus=2", "--object-store-memory=100000000"]
_METRICS = f"--metrics-export-port={METRICS_PORT}"
_QUIET = ["--include-dashboard=false", "--disable-usage-stats", "--log-color=false"]
_CHECK_S = 5
_RETRY_S = 60


def main() -> int:
    """Run the head until it ends; services are deployed again whenever one is absent or has failed."""
    configure_logging("head")
    head = subprocess.Popen([*_HEAD, _METRICS, *_QUIET])
    try:
        _connect(head)
        with socket.create_server(("", READY_PORT)):  # workers that came earlier would only slow the head's start
            _await_places(head)
            _keep_deployed(head)
    finally:
        head.terminate()
    return head.wait()


def _keep_deployed(head: subprocess.Popen[bytes]) -> None:
    while head.poll() is None:
        missing = [app.name for app in apps.states() if app.state in ("absent", "DEPLOY_FAILED")]
        if missing:
            apps.deploy(HTTP, missing)
        # Retry failed services less often than they are polled.
        time.sleep(_RETRY_S if missing else _CHECK_S)


def _connect(head: subprocess.Popen[bytes]) -> None:
    import ray

    while not answers("127.0.0.1", 6379):
        if head.poll() is not None:
            raise EndpointError(f"Ray's head ended with {head.returncode}")
        time.sleep(0.5)
    while True:
        try:
            ray.init(address="127.0.0.1:6379", namespace="serve", log_to_driver=False)
            return
        except (ConnectionError, RuntimeError) as error:
            ray.shutdown()
            if head.poll() is not None:
                raise EndpointError(f"Ray's head ended with {head.returncode}") from error
            time.sleep(1)


def _await_places(head: subprocess.Popen[bytes]) -> None:
    """Wait until a worker of every service has joined, so that each can be placed."""
    import ray

    seen = set[str]()
    while head.poll() is None and seen != set(SERVICES):
        here = set(SERVICES) & ray.cluster_resources().keys()
        for name in sorted(here - seen):
            _LOG.info("worker of the %s has joined", name)
        seen = here
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
