"""How many replicas a service should have, from its queue and its HTTP requests in progress.

Ray's AsyncInferenceAutoscalingPolicy computes the same sum, but reads Redis only, needs a package that is not among our
pins, and carries the broker's address, password included, in the deployment's configuration.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from poolbench.errors import PoolbenchError
from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.runtime.settings import ClusterSettings

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

_LOG = logging.getLogger("poolbench.queue")


class QueueLengthPolicy:
    """A Serve autoscaling policy. It runs in Serve's controller, which must not wait for a broker."""

    def __init__(self, service: str, poll_interval_s: float = 5.0) -> None:
        self._service = service
        self._poll_interval_s = poll_interval_s
        self._queue: TaskQueue | None = None
        self._poller: threading.Thread | None = None
        self._polled_s = float("-inf")
        self._depth = 0

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Return the replicas wanted, before Serve's limits and delays: all work over the work of one replica."""
        self._start_polling()
        assert context.config is not None  # Serve asks only deployments that have one
        work = context.total_num_requests + self._depth
        return work / context.config.get_target_ongoing_requests(), {"queue_length": self._depth}

    def _start_polling(self) -> None:
        now = time.monotonic()
        if now - self._polled_s < self._poll_interval_s or (self._poller is not None and self._poller.is_alive()):
            return
        self._polled_s = now
        self._poller = threading.Thread(target=self._poll, name="queue-length", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        try:
            if self._queue is None:
                self._queue = TaskQueue(Broker(ClusterSettings.load().broker_url))
            self._depth = self._queue.depth(self._service)
        except PoolbenchError as error:
            _LOG.warning("the queue of the %s cannot be read; its last length is kept: %s", self._service, error)
