"""An S3 service that dies, is slow, answers with errors, or takes no writes."""

import random
import time
from collections.abc import Collection

from tests.servers.gateway import Gateway
from tests.servers.meddler import Fault
from tests.servers.nodes import Nodes
from tests.trials.soak.faults.processes import AWAY_S

from poolbench.contracts.wire import SERVICES

_ERRORS_S = 60.0
_SLOW_S = 15.0
_DELAY_S = 2.0
_WRITES = ("PUT", "POST", "DELETE")
_READ_ONLY_S = 15.0


def s3_restarts(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Kill the S3 service and start it again."""
    nodes.inside(_gateway(nodes).kill)
    time.sleep(AWAY_S)
    nodes.inside(_gateway(nodes).start)
    return SERVICES


def s3_slow(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Delay every request by 2 s."""
    return _disturbed(nodes, _SLOW_S, Fault(delay_s=_DELAY_S))


def s3_errors(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Answer with 500 or 503 for a minute, before or after the service has done what was asked."""
    codes = [Fault(status=status, forward=forward) for status in (500, 503) for forward in (False, True)]
    return _disturbed(nodes, _ERRORS_S, *codes)


def s3_read_only(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Refuse writes with 403, as a policy would."""
    return _disturbed(nodes, _READ_ONLY_S, *(Fault(method, status=403, forward=False) for method in _WRITES))


def s3_full(nodes: Nodes, _: random.Random) -> Collection[str]:
    """Set the service's limit of bytes below what it has, so that writes wait or fail."""
    gateway = _gateway(nodes)
    nodes.inside(lambda: _set_full(gateway, 0.0001, 0.0002, 0.0003))
    time.sleep(_READ_ONLY_S)
    nodes.inside(lambda: _set_full(gateway, 0.85, 0.9, 0.95))
    return SERVICES


def _set_full(gateway: Gateway, *ratios: float) -> None:
    for name, ratio in zip(("nearfull", "backfillfull", "full"), ratios, strict=True):
        gateway.command("osd", f"set-{name}-ratio", str(ratio))


def _disturbed(nodes: Nodes, seconds: float, *faults: Fault) -> Collection[str]:
    gateway = _gateway(nodes)
    gateway.disturb(*faults)
    time.sleep(seconds)
    gateway.disturb()
    return SERVICES


def _gateway(nodes: Nodes) -> Gateway:
    assert nodes.gateway is not None
    return nodes.gateway
