"""How many replicas a service should have: from its queue, its tasks in work and its HTTP requests in progress.

Ray's AsyncInferenceAutoscalingPolicy has no term for tasks in work, so it ends replicas in the middle of a long one. It
reads Redis only, and carries the broker's address, password included, in the deployment's configuration.
"""

import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poolbench.errors import PoolbenchError
from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.settings import ClusterSettings

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

#: Names of the metrics that each replica records.
TASKS_IN_WORK, REQUESTS, HOLDS_STATE = "tasks_in_work", "requests", "holds_state"
METRICS = TASKS_IN_WORK, REQUESTS, HOLDS_STATE
#: A mean number of waiting requests that questions for `/health` do not reach; a verb that waits is beyond it in 3 s.
_REMAINDER = 0.2
_LOG = logging.getLogger("poolbench.queue")


@dataclass(frozen=True)
class Demand:
    """The work that the replicas of a service have to do."""

    waiting: int | None  # messages in its queue; None if the broker could not be read
    in_work: float  # tasks in work
    requests: float  # verbs in progress, or waiting for a replica
    holding_state: float = 0.0  # replicas that hold what a client sent them, and that would be lost with them

    def replicas(self, tasks_per_replica: float, requests_per_replica: float, there: int) -> int:
        """Return the replicas that this demand asks for, where `there` are so many."""
        tasks = ((self.waiting or 0) + self.in_work) / tasks_per_replica
        num_replicas = math.ceil(tasks + self.requests / requests_per_replica)
        # Serve chooses which replica it ends, so the number stays if one of them must not be ended.
        keep = self.waiting is None or self.holding_state > 0
        return max(there, num_replicas) if keep else num_replicas


class QueueLengthPolicy:
    """A Serve autoscaling policy for one service. It runs in Serve's controller, which must not wait for a broker.

    Serve's own number of requests includes requests for `/health`, so a monitor would keep a service awake for ever.
    The replicas therefore count their own requests, and Serve's number is used only for requests that wait while there
    is no replica.

    Replicas that were not needed for `idle_s` seconds are stopped. The policy measures this time by the monotonic
    clock. Serve's own delay compares times of day, so replicas would stop if the clock jumps.
    """

    def __init__(
        self,
        service: str,
        tasks_per_replica: float,
        requests_per_replica: float,
        idle_s: float,
        poll_interval_s: float = 2.0,
    ) -> None:
        self._service, self._idle_s, self._poll_interval_s = service, idle_s, poll_interval_s
        self._per_replica = tasks_per_replica, requests_per_replica
        self._queue: TaskQueue | None = None
        self._poller: threading.Thread | None = None
        self._polled_s = float("-inf")
        self._needed_s = time.monotonic()
        self._running_s = float("-inf")
        self._waiting: int | None = None

    def __call__(self, context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
        """Return the replicas wanted, before Serve's limits."""
        assert context.config is not None  # Serve asks only deployments that have one
        self._start_polling(limit=math.ceil(self._per_replica[0] * context.config.max_replicas))
        recorded = context.aggregated_metrics or {}
        in_work, requests, holding = (sum(recorded.get(name, {}).values()) for name in METRICS)
        requests += self._waiting_requests(context)
        demand = Demand(self._waiting, in_work, requests, holding)
        num_replicas = demand.replicas(*self._per_replica, context.target_num_replicas)
        now = time.monotonic()
        if num_replicas >= context.target_num_replicas:
            self._needed_s = now
        elif now - self._needed_s < self._idle_s:
            num_replicas = context.target_num_replicas
        return num_replicas, {"queue_length": self._waiting}

    def _waiting_requests(self, context: "AutoscalingContext") -> float:
        """Return the requests that wait for a first replica: Serve's mean over `look_back_period_s`.

        Just after the end of the last replica, this mean still has questions for `/health` in it that waited for a
        moment on their way to that replica, or met its end.
        """
        assert context.config is not None
        now = time.monotonic()
        if context.running_replicas:
            self._running_s = now
            return 0.0
        settled = now - self._running_s > context.config.look_back_period_s
        return context.total_queued_requests if settled or context.total_queued_requests > _REMAINDER else 0.0

    def _start_polling(self, limit: int) -> None:
        now = time.monotonic()
        if now - self._polled_s < self._poll_interval_s or (self._poller is not None and self._poller.is_alive()):
            return
        self._polled_s = now
        self._poller = threading.Thread(target=self._poll, args=(limit,), name="queue-length", daemon=True)
        self._poller.start()

    def _poll(self, limit: int) -> None:
        """Read the length of the queue: four LLEN, or the names in a folder, up to `limit` messages."""
        try:
            if self._queue is None:
                self._queue = TaskQueue(Broker(ClusterSettings.load().broker_url))
            self._waiting = self._queue.depth(self._service, limit)
        except PoolbenchError as error:
            self._waiting = None
            _LOG.warning("the queue of the %s cannot be read; its replicas stay: %s", self._service, error)
