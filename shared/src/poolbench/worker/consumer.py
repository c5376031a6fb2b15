"""The queue consumer inside a Serve replica: Ray's task-processor interface over our Celery application.

Ray's own adapter ties Celery's concurrency to `max_ongoing_requests`, keeps results in the broker and stops
by broadcast. Here HTTP concurrency and tasks at once are separate, and no result is stored in the broker.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import celery.worker.state
from celery import Celery, current_task
from celery.exceptions import Reject
from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from poolbench.errors import BrokerError, ConfigError
from poolbench.queue.broker import Broker
from poolbench.queue.client import TaskQueue
from poolbench.queue.envelope import MAX_RETRIES, SENT_AT, STEP, STORE
from poolbench.settings import ClusterSettings
from poolbench.statuses import TaskOutcome
from poolbench.telemetry.catalog import TASK_WAIT_SECONDS
from poolbench.telemetry.traces import TRACEPARENT, continued
from poolbench.worker.worker import RefusedTaskError, RetryTaskError, Sender

_LOG = logging.getLogger("poolbench.queue")
_RETRY_PAUSE_S = 2.0


class QueueConsumer(TaskProcessorAdapter):
    """A consumer of a service's queue, which runs in a thread of the replica."""

    def __init__(self, config: TaskProcessorConfig) -> None:
        super().__init__()
        self._config = config
        self._thread: threading.Thread | None = None
        self._service: str = config.adapter_config["service"]
        self._broker = Broker(ClusterSettings.load().broker_url)
        self._queue = TaskQueue(self._broker, lambda: _sender().store_id)  # a retry is sent as it came

    def initialize(self, consumer_concurrency: int = 1) -> None:
        """Prepare the Celery application. The concurrency comes from our configuration, not from Serve."""
        self._app: Celery = self._broker.celery_app()
        self._app.conf.update(
            worker_pool="threads",
            worker_concurrency=int(self._config.adapter_config["tasks_at_once"]),
            task_default_queue=self._config.queue_name,
        )

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Register the task.

        After RetryTaskError, the task is delivered again, at most `MAX_RETRIES` times. After any other exception, the
        task becomes a dead letter.
        """
        replica = getattr(func, "__self__", None)
        if self._config.adapter_config.get("chooses") and replica is not None and (affinity := replica.affinity()):
            self._app.conf.broker_transport_options |= {"affinity": affinity}

        def run(task: dict[str, Any]) -> str:
            retries = current_task.request.retries
            sent_at = current_task.request.get(SENT_AT)
            if retries == 0 and isinstance(sent_at, float):
                TASK_WAIT_SECONDS.observe(max(0.0, time.time() - sent_at), service=self._service)
            try:
                with continued(current_task.request.get(TRACEPARENT)):
                    final = retries >= MAX_RETRIES
                    return str(func(task, attempt=retries + 1, final=final, sender=_sender()))
            except RetryTaskError as error:
                if retries < MAX_RETRIES:
                    return self._retry(task, retries, str(error))
                reason = str(error)
            except RefusedTaskError as error:
                reason = str(error)
            except Exception as error:  # a defect of the worker
                reason = f"internal: {type(error).__name__}: {error}"
            _LOG.error("dead letter of %s: %s", self._service, reason)
            self._queue.bury(self._service, task, reason)
            return TaskOutcome.FAILED

        for builtin in [task_name for task_name in self._app.tasks if task_name != name]:
            self._app.tasks.unregister(builtin)  # chords, groups and the like: nothing of ours
        self._app.task(name=name, max_retries=MAX_RETRIES)(run)

    def _retry(self, task: dict[str, Any], retries: int, reason: str) -> str:
        """Send a task again after a pause. Celery acknowledges this delivery when it has been sent, not before.

        Celery's own retry names a time of day, which workers with other clocks misunderstand.
        """
        pause_s = _RETRY_PAUSE_S * 2**retries
        _LOG.warning("delivered again in %g s: %s", pause_s, reason)
        try:
            self._queue.send_again(self._service, task, retries + 1, pause_s)
        except BrokerError as error:
            # The driver finds the task neither waiting nor leased, and sends it again.
            _LOG.error("%s could not be sent again: %s", task["task_id"], error)
            raise Reject(str(error), requeue=False) from error
        return TaskOutcome.RETRIED

    def start_consumer(self, **kwargs: Any) -> None:
        """Start the consuming thread."""
        queue = self._config.queue_name
        arguments = ["worker", "-Q", queue, f"--hostname={queue}-{os.getpid()}@%h"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"]
        self._thread = threading.Thread(
            target=self._app.worker_main, args=(arguments + quiet,), name="queue-consumer", daemon=True
        )
        self._thread.start()
        _LOG.info("consuming %s on %s", self._config.queue_name, self._broker.shown)

    def stop_consumer(self, timeout: float | None = None) -> None:
        """Ask the consuming thread to end, and wait for at most `timeout` seconds, by default `finish_s`.

        A task that runs longer keeps its lease.
        """
        if self._thread is None:
            return
        celery.worker.state.should_stop = os.EX_OK
        self._thread.join(float(self._config.adapter_config["finish_s"]) if timeout is None else timeout)
        self._thread = None

    def consuming(self) -> bool:
        """Return whether the consuming thread is alive. If not, the replica is unhealthy."""
        return self._thread is not None and self._thread.is_alive()

    def enqueue_task_sync(self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any) -> TaskResult:
        """Enqueue on this service's queue."""
        options["queue"] = self._config.queue_name
        sent = self._app.send_task(task_name, args=args, kwargs=kwargs, **options)
        return TaskResult(id=sent.id, status="PENDING", result=None)

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


def _sender() -> Sender:
    """Return the facts that the current message states about its sender."""
    request = current_task.request
    return Sender(request.get(STEP), request.get(STORE))
