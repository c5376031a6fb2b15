"""`python -m deploy.docker.node SERVICE`: a Ray worker that offers places for one service, inside its container."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from poolbench.runtime.service import SERVICES

HEAD = ("head", 6379)
REPLICAS_PER_NODE = 4


def main() -> None:
    """Waits for the head, then becomes the Ray worker."""
    if len(sys.argv) != 2 or sys.argv[1] not in SERVICES:
        sys.exit(f"usage: python -m deploy.docker.node {'|'.join(SERVICES)}")
    while not _answers():
        time.sleep(1)
    places = json.dumps({sys.argv[1]: REPLICAS_PER_NODE})
    command = ["ray", "start", "--block", f"--address={HEAD[0]}:{HEAD[1]}", f"--resources={places}"]
    os.execvp("ray", [*command, "--object-store-memory=100000000", "--disable-usage-stats", "--log-color=false"])


def _answers() -> bool:
    try:
        with socket.create_connection(HEAD, timeout=1):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
