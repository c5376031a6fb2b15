"""`python -m deploy.nodes.worker HEAD SERVICE...`: a Ray node that offers places for services, on this machine.

It waits for the head, and joins again if Ray's node has ended.
"""

import argparse
import subprocess
import sys
import time
from typing import NoReturn

from deploy.local.head import answers
from deploy.nodes.ray_node import RAY_PORT, READY_PORT, add_options, command, require_token, run_node, service

_STOP_S = 30


def main() -> int:
    """Be a node of the cluster until this process is ended."""
    parser = argparse.ArgumentParser(prog="python -m deploy.nodes.worker", description=__doc__)
    parser.add_argument("head", help="name or address of the head's machine")
    parser.add_argument("services", nargs="+", type=service, help="services that may run here")
    add_options(parser)
    options = parser.parse_args()
    return run_node(lambda: _join_for_ever(options))


def _join_for_ever(options: argparse.Namespace) -> NoReturn:
    while True:
        code = _join(options)
        print(f"Ray's node ended with {code}; waiting for the head to join again", file=sys.stderr)


def _join(options: argparse.Namespace) -> int:
    """Join the cluster; return the exit code of Ray's node."""
    while not answers(options.head, READY_PORT):
        time.sleep(1)
    require_token(options.head)
    node = subprocess.Popen(command(options.address, options.services, f"--address={options.head}:{RAY_PORT}"))
    try:
        return node.wait()
    finally:
        node.terminate()
        node.wait(_STOP_S)


if __name__ == "__main__":
    sys.exit(main())
