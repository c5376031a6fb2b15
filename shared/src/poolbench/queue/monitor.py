"""Measure the queues of all services, in a process that lives as long as the cluster.

Serve's HTTP proxy does this, because a service may have no replica: then its queue matters most.
"""

import logging
import threading

from poolbench.contracts.wire import SERVICES
from poolbench.errors import PoolbenchError
from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.telemetry.catalog import DEAD_LETTERS, QUEUE_MESSAGES, QUEUE_OLDEST_SECONDS

INTERVAL_S = 15.0
_LOG = logging.getLogger("poolbench.queue")


class QueueMonitor:
    """A thread that measures the queues of a broker every `interval_s` seconds."""

    def __init__(self, broker_url: str, interval_s: float = INTERVAL_S) -> None:
        self._broker_url, self._interval_s = broker_url, interval_s
        self._queue: TaskQueue | None = None
        self._away = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queue-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread. The thread ends with its process or at a call of `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def measure(self) -> None:
        """Measure each queue once. Raise BrokerError if the broker cannot be reached."""
        self._queue = self._queue or TaskQueue(Broker(self._broker_url))
        for service in SERVICES:
            QUEUE_MESSAGES.set(self._queue.depth(service), service=service)
            QUEUE_OLDEST_SECONDS.set(self._queue.oldest_s(service), service=service)
            DEAD_LETTERS.set(self._queue.num_dead_letters(service), service=service)

    def _run(self) -> None:
        while True:
            try:
                self.measure()
                self._away = False
            except (PoolbenchError, OSError) as error:
                if not self._away:
                    self._away = True
                    _LOG.warning("the queues cannot be measured: %s", error)
            if self._stopped.wait(self._interval_s):
                return
