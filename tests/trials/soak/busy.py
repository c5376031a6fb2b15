"""Which services have work."""

import json

from tests.servers.nodes import Nodes

from poolbench.contracts.wire import SERVICES
from poolbench.queue.envelope import queue_name
from poolbench.queue.lists import keys_of


def busy(nodes: Nodes) -> set[str]:
    """Return the services whose tasks wait, or are in work, by the broker."""

    def read() -> set[str]:
        broker = nodes.broker()
        waiting = {name for name in SERVICES if any(broker.llen(key) for key in keys_of(queue_name(name)))}
        in_work = {json.loads(entry)[2] for entry in broker.hvals("unacked")}  # the queue of each, as kombu stores it
        return waiting | {name for name in SERVICES if queue_name(name) in in_work}

    return nodes.inside(read)
