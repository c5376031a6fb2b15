"""Sending tasks, and looking into the queues, from any process; none of it needs Ray."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kombu.exceptions import OperationalError

from poolbench.contracts.tasks import Task
from poolbench.errors import BrokerError
from poolbench.queue import folder
from poolbench.queue.broker import TASK_NAME, Broker, failed_queue_name, queue_name

_PUBLISH_POLICY = {"max_retries": 2, "interval_start": 0.2, "interval_step": 0.5, "interval_max": 1.0}


@dataclass(frozen=True)
class DeadLetter:
    """A task that failed after its retries: what it was, and what was said last."""

    service: str
    task: dict[str, Any]
    error: str


class TaskQueue:
    """Producer and observer of the services' queues on one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._app = broker.celery_app()
        self._errors: tuple[type[Exception], ...] = (OperationalError, OSError)
        if not broker.is_folder:
            self._errors += _redis_errors()

    def send(self, task: Task) -> None:
        """Put a task on its service's queue.

        Args:
            task: its kind names the service, as in `extractor.extract`.

        Raises:
            BrokerError: the broker cannot be reached.
        """
        self._publish(queue_name(task.service), task.task_id, {"task": task.model_dump(mode="json")})

    def bury(self, service: str, task: dict[str, Any], error: str) -> None:
        """Put a task on its service's dead-letter queue."""
        task_id = str(task.get("task_id", ""))
        self._publish(failed_queue_name(service), task_id, {"task": task, "error": error})

    def depth(self, service: str) -> int:
        """Number of tasks waiting for a service, those in work not counted."""
        return len(self._messages(queue_name(service)))

    def waiting(self, service: str) -> set[str]:
        """Ids of the tasks waiting for a service."""
        return {message["headers"]["id"] for message in self._messages(queue_name(service))}

    def dead_letters(self, service: str) -> list[DeadLetter]:
        """The dead letters of a service, left where they are."""
        found = []
        for message in self._messages(failed_queue_name(service)):
            kwargs = _decode_kwargs(message)
            found.append(DeadLetter(service, kwargs.get("task", {}), str(kwargs.get("error", ""))))
        return found

    def purge(self, service: str) -> int:
        """Drop what waits for a service and its dead letters; returns how many messages."""
        with self._reachable(), self._app.connection_for_write() as connection:
            channel = connection.default_channel
            names = (queue_name(service), failed_queue_name(service))
            return sum(int(channel._purge(name)) for name in names)

    def ping(self) -> None:
        """Check that the broker answers.

        Raises:
            BrokerError: it does not.
        """
        with self._reachable(), self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.2, timeout=5)

    def _publish(self, queue: str, task_id: str, kwargs: dict[str, Any]) -> None:
        with self._reachable():
            options = {
                "queue": queue,
                "task_id": task_id or None,
                "retry": True,
                "retry_policy": _PUBLISH_POLICY,
            }
            self._app.send_task(TASK_NAME, kwargs=kwargs, **options)

    def _messages(self, queue: str) -> list[dict[str, Any]]:
        if self.broker.is_folder:
            read = (folder.read_message(path) for path in folder.message_files(self.broker.folder, queue))
            return [message for message in read if message is not None]
        with self._reachable(), self._app.connection_for_read() as connection:
            raw = connection.default_channel.client.lrange(queue, 0, -1)
        return [json.loads(message) for message in raw]

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise BrokerError(
                f"the broker {self.broker.shown} does not answer ({error}): start it with `make cluster-up`, "
                "or correct POOLBENCH_BROKER"
            ) from error


def _redis_errors() -> tuple[type[Exception], ...]:
    import redis

    return (redis.RedisError,)


def _decode_kwargs(message: dict[str, Any]) -> dict[str, Any]:
    body = message["body"]
    if message.get("properties", {}).get("body_encoding") == "base64":
        body = base64.b64decode(body)
    return dict(json.loads(body)[1])
