"""The queue consumer inside a Serve replica: Ray's task-processor interface over our queues.

Ray's own adapters need Celery or Taskiq, whose consumers take messages as they come: these end at a message that they
cannot parse, and cannot prefer tasks of the loaded model.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from poolbench.errors import BrokerError, ConfigError
from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.queue.deliveries import Deliveries
from poolbench.queue.messages import MAX_RETRIES, Message
from poolbench.settings import ClusterSettings
from poolbench.telemetry.catalog import TASK_WAIT_SECONDS
from poolbench.telemetry.traces import continued
from poolbench.worker.worker import RefusedTaskError, RetryTaskError, Sender

_LOG = logging.getLogger("poolbench.queue")
_RETRY_PAUSE_S = 2.0
#: Longest wait for a message, after which a thread looks whether it shall stop.
_WAIT_S = 1.0
#: Pause before the next try while the broker is away.
_AWAY_PAUSE_S = 1.0


class QueueConsumer(TaskProcessorAdapter):
    """A consumer of a service's queue, with a thread of the replica for each task at once."""

    def __init__(self, config: TaskProcessorConfig) -> None:
        super().__init__()
        self._config = config
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._service: str = config.adapter_config["service"]
        self._broker = Broker(ClusterSettings.load().broker_url)
        self._queue = TaskQueue(self._broker)
        self._run: Callable[..., Any] | None = None

    def initialize(self, consumer_concurrency: int = 1) -> None:
        """Do nothing. The number of tasks at once comes from our configuration, not from Serve."""

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Register the function that works on a task.

        After RetryTaskError, the task is delivered again, at most `MAX_RETRIES` times. After any other exception, the
        task becomes a dead letter.
        """
        self._run = func

    def start_consumer(self, **kwargs: Any) -> None:
        """Start the consuming threads."""
        replica, affinity = getattr(self._run, "__self__", None), None
        if self._config.adapter_config.get("chooses") and replica is not None:
            affinity = replica.affinity()
        deliveries = Deliveries(self._broker, self._config.queue_name, affinity)
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._consume, args=(deliveries,), name=f"queue-consumer-{number}", daemon=True)
            for number in range(int(self._config.adapter_config["tasks_at_once"]))
        ]
        for thread in self._threads:
            thread.start()
        _LOG.info("consuming %s on %s", self._config.queue_name, self._broker.shown)

    def stop_consumer(self, timeout: float | None = None) -> None:
        """Ask the consuming threads to end, and wait for at most `timeout` seconds, by default `finish_s`.

        A task that runs longer keeps its lease.
        """
        self._stopping.set()
        ends_s = time.monotonic() + (float(self._config.adapter_config["finish_s"]) if timeout is None else timeout)
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        self._threads = []

    def consuming(self) -> bool:
        """Return whether all consuming threads are alive. If not, the replica is unhealthy."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def _consume(self, deliveries: Deliveries) -> None:
        away = False
        while not self._stopping.is_set():
            try:
                message = deliveries.next(_WAIT_S)
            except self._broker.errors as error:
                if not away:
                    _LOG.warning("%s", self._broker.explained(error))
                away = True
                self._stopping.wait(_AWAY_PAUSE_S)
                continue
            if away:
                _LOG.warning("the broker %s answers again", self._broker.shown)
                away = False
            if message is not None:
                self._work(message)

    def _work(self, message: Message) -> None:
        """Run a task. If the broker is away at its end, the driver sends the task again."""
        assert self._run is not None
        if message.retries == 0 and message.sent_at is not None:
            TASK_WAIT_SECONDS.observe(max(0.0, time.time() - message.sent_at), service=self._service)
        is_final = message.retries >= MAX_RETRIES
        try:
            with continued(message.traceparent):
                sender = Sender(message.step, message.store)
                self._run(message.task, attempt=message.retries + 1, final=is_final, sender=sender)
            return
        except RetryTaskError as error:
            reason, goes_back = str(error), not is_final
        except RefusedTaskError as error:
            reason, goes_back = str(error), False
        except Exception as error:  # a defect of the worker
            reason, goes_back = f"internal: {type(error).__name__}: {error}", False
        try:
            if goes_back:
                pause_s = _RETRY_PAUSE_S * 2**message.retries
                _LOG.warning("delivered again in %g s: %s", pause_s, reason)
                self._queue.send_again(self._service, message, pause_s)
            else:
                _LOG.error("dead letter of %s: %s", self._service, reason)
                self._queue.bury(self._service, message.task, reason)
        except BrokerError as error:
            _LOG.error("task %s: %s", message.task_id, error)

    def enqueue_task_sync(self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any) -> TaskResult:
        """Raise ConfigError, because tasks are sent by `TaskQueue`."""
        raise ConfigError("send tasks with poolbench.queue.TaskQueue")

    def get_task_status_sync(self, task_id: str) -> TaskResult:
        """Return "pending": completion is read from manifests in the object store, not from the broker."""
        return TaskResult(id=task_id, status="PENDING", result=None)

    def cancel_task_sync(self, task_id: str) -> None:
        """Raise ConfigError, because a single task cannot be cancelled here.

        Waiting tasks are dropped by purging their queue, and running tasks end with their replica.
        """
        raise ConfigError(f"task {task_id} cannot be cancelled one by one: use `poolbench-driver cancel`")

    def get_metrics_sync(self) -> dict[str, Any]:
        """Return the length of the queue."""
        return {"depth": self._queue.depth(self._service)}

    def health_check_sync(self) -> list[dict[str, Any]]:
        """Return whether the consuming thread is alive."""
        return [{self._config.queue_name: {"consuming": self.consuming()}}]
