"""What heads and workers have in common: arguments, environment, ports, and Ray's own command."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from deploy.environment import DEFAULTS, FIXED
from deploy.local.head import COMMON, REPLICAS_PER_NODE
from poolbench.contracts.wire import METRICS_PORT, SERVICES, Exit
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.settings import ClusterSettings, PlaceSettings, refuse_unknown

RAY_PORT = 6379
READY_PORT = 6380
"""The head listens here once its own node is in."""

AGENT_PORT = 52365
"""Ray's agent answers here over HTTP once its node is in the cluster; `deploy.docker.answers` asks it."""

#: Seconds that a node waits for a head that is away before it ends its work.
HEAD_AWAY_S = 300
#: The head takes a node for dead after five questions without an answer. By default Ray waits 3 and 10 s each: that is
#: over a minute if the machine is switched off, because nothing refuses the connection then.
_HEALTH = {"RAY_health_check_period_ms": "2000", "RAY_health_check_timeout_ms": "4000"}
_BIN = Path(sys.executable).parent
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def service(name: str) -> str:
    """Return the name of a service; the type of an argument."""
    if name not in SERVICES:
        raise argparse.ArgumentTypeError(f"{name!r} is not a service; choose of {', '.join(SERVICES)}")
    return name


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every node."""
    parser.add_argument("--address", help="address of this machine that the others reach; by default Ray chooses it")


def prepare() -> None:
    """Set the environment of Ray's processes. Raise ConfigError if this node lacks what a cluster needs."""
    refuse_unknown()
    os.environ.update(FIXED | _HEALTH | {"RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_AWAY_S)})
    os.environ["PATH"] = f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if not any(os.environ.get(name) for name in _TOKENS):
        raise ConfigError(f"set {' or '.join(_TOKENS)}, to the same token on every node: without it Ray is open to all")
    if not ClusterSettings.load().token:
        raise ConfigError("set POOLBENCH_TOKEN, to the same token on every node")


def command(address: str | None, services: Sequence[str], *options: str) -> list[str]:
    """Return the arguments of `ray start` for a node with room for replicas of `services`."""
    places = json.dumps(dict.fromkeys(services, REPLICAS_PER_NODE))
    flags = [f"--node-ip-address={address}"] if address else []
    port = PlaceSettings.load().metrics_port or METRICS_PORT
    # Fixed, so that health checks and firewalls know them. Ray ends if its agent does not listen within 15 s.
    flags += [f"--metrics-export-port={port}", f"--dashboard-agent-grpc-port={port + 1}"]
    flags += [f"--runtime-env-agent-port={port + 2}", f"--dashboard-agent-listen-port={AGENT_PORT}"]
    return [str(_BIN / "ray"), "start", "--block", f"--resources={places}", *flags, *COMMON, *options]


def run_node(work: Callable[[], int]) -> int:
    """Prepare this node and do its work; return an exit code. An error that an operator can correct is one line."""
    try:
        prepare()

        def end(number: int, _: object) -> NoReturn:  # as an exception does, so that Ray is stopped
            sys.exit(128 + number)

        signal.signal(signal.SIGTERM, end)
        return work()
    except PoolbenchError as error:
        print(f"error {error}", file=sys.stderr)
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def require_token(head: str) -> None:
    """Raise ConfigError if the head refuses our token; Ray's own node would try to join for minutes."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, and without annotations
    from ray.exceptions import AuthenticationError, RayError

    try:
        GcsClient(address=f"{head}:{RAY_PORT}")
    except AuthenticationError:
        raise ConfigError(
            f"the head {head} refuses the token of Ray: set {' or '.join(_TOKENS)} to the same token on every node"
        ) from None
    except (RayError, RuntimeError) as error:  # it went away again; Ray's node waits for it
        print(f"the head {head} does not answer: {error}", file=sys.stderr)
