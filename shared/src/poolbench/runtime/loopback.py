"""Keep the gRPC server of a Serve replica on loopback if its Ray node is on loopback.

Ray's own servers follow the node's address. The server that a replica opens for calls from other deployments listens
on every interface instead, and Serve has no setting for it. `cluster-up` checks the open ports, which detects a version
of Ray in which this has no effect.
"""

import ipaddress
import logging
from typing import Any

_ANY_PORT = "[::]:0"
_LOG = logging.getLogger("poolbench.task")


def keep_on_loopback() -> None:
    """Let the replica of this process listen on 127.0.0.1, if its node does; call it before Serve opens the port."""
    import ray

    if not ray.is_initialized() or not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        return
    from ray.serve._private import replica

    original = getattr(replica, "add_port_to_grpc_server", None)
    if original is None:
        _LOG.error("Ray %s: the port of this replica could not be kept on loopback", ray.__version__)
        return

    def add_loopback_port(server: Any, address: str) -> Any:
        return original(server, "127.0.0.1:0" if address == _ANY_PORT else address)

    replica.add_port_to_grpc_server = add_loopback_port
