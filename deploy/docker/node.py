"""`python -m deploy.docker.node SERVICE`: a Ray worker that offers places for one service, inside its container."""

import json
import os
import socket
import sys
import time

from poolbench.contracts.wire import METRICS_PORT, SERVICES
from poolbench.settings import refuse_unknown

HEAD = "head"
READY_PORT = 6380
"""The head listens here once its own node is in."""

REPLICAS_PER_NODE = 16


def main() -> None:
    """Wait for the head, then become the Ray worker."""
    if len(sys.argv) != 2 or sys.argv[1] not in SERVICES:
        sys.exit(f"usage: python -m deploy.docker.node {'|'.join(SERVICES)}")
    refuse_unknown()
    while not answers(HEAD, READY_PORT):
        time.sleep(1)
    places = json.dumps({sys.argv[1]: REPLICAS_PER_NODE})
    command = ["ray", "start", "--block", f"--address={HEAD}:6379", f"--resources={places}"]
    command.append(f"--metrics-export-port={METRICS_PORT}")
    os.execvp("ray", [*command, "--object-store-memory=100000000", "--disable-usage-stats", "--log-color=false"])


def answers(host: str, port: int) -> bool:
    """Return whether the port is open."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
