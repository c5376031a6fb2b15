"""Send tasks and inspect the queues, from any process and without Ray."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.errors import BrokerError, ConfigError
from poolbench.queue.broker import Broker
from poolbench.queue.letters import NEWEST_SHOWN, DeadLetter, StoredLetter, read_letter
from poolbench.queue.messages import Message, Misunderstood, queue_name, understand
from poolbench.steps import STEPS
from poolbench.telemetry.catalog import BROKER_ERRORS, BROKER_SECONDS
from poolbench.telemetry.traces import TRACEPARENT, span, trace_headers

#: The youngest of them is BLMOVE, of Redis 6.2; queue, leases and dead letters need the others.
NEEDED = (
    "blmove", "del", "eval", "get", "lindex", "llen", "lpos", "lpush", "lrange", "lrem", "ltrim", "mget", "multi",
    "set",
)  # fmt: skip


def require_commands(broker: Broker) -> None:
    """Raise ConfigError if a Redis server lacks a command that we need, as old releases do.

    Raise redis.RedisError if the server is away.
    """
    import redis

    client = broker.redis_client()
    client.ping()
    try:
        command_infos = client.execute_command("COMMAND INFO", *NEEDED)
    except redis.exceptions.NoPermissionError:  # a user who may not ask
        return
    if lacking := [name for name, info in zip(NEEDED, command_infos, strict=True) if info is None]:
        release = "(of an unknown release)"
        with suppress(redis.RedisError):
            release = str(client.info("server").get("redis_version", ""))
        raise ConfigError(
            f"the broker {broker.shown} is Redis {release} without the commands {', '.join(lacking)}: use "
            "Redis 6.2 or later, or Valkey, and disable none of them"
        )


class TaskQueue:
    """A client of a broker that sends tasks to the services' queues and observes the queues."""

    def __init__(self, broker: Broker, store_id: Callable[[], str | None] | None = None) -> None:
        """Open the queues of a broker.

        Args:
            broker: The broker.
            store_id: Function that returns the id of the object store, or None. Each task carries the id, so that a
                consumer can compare the id with its own store.
        """
        self.broker = broker
        self._store_id = store_id
        self._spool = broker.spool()

    def send(self, task: Task) -> None:
        """Put a task on the queue of its service. Raise BrokerError if the broker cannot be reached."""
        with span(f"send {task.kind}", run_id=task.run_id, task_id=task.task_id):
            step = STEPS.get(task.kind)
            message = Message(
                task=task.model_dump(mode="json"),
                sent_at=time.time(),
                traceparent=trace_headers().get(TRACEPARENT),
                step=None if step is None else step.version,
                store=self._store_id and self._store_id(),
            )
            self._put(task.service, message)

    def send_again(self, service: str, message: Message, pause_s: float) -> None:
        """Put a message back on its queue, to be delivered after a pause. Raise BrokerError like `send`.

        Args:
            service: Service of the queue.
            message: Message as it was delivered.
            pause_s: Seconds before the next delivery, at most `MAX_PAUSE_S`. Each consumer measures the pause by its
                own monotonic clock, from the moment when it finds the message.
        """
        again = {"retries": message.retries + 1, "pause_s": pause_s, "sent_at": time.time()}
        self._put(service, message.model_copy(update=again))

    def bury(self, service: str, task: dict[str, Any], reason: str) -> None:
        """Add a task to the dead letters of a service."""
        with self._reachable("bury"):
            self._spool.bury(queue_name(service), DeadLetter.of_task(service, task, reason))

    def depth(self, service: str, limit: int | None = None) -> int:
        """Return the number of messages waiting for a service. Tasks in work do not count. Stop counting at `limit`."""
        with self._reachable("count"):
            return self._spool.count(queue_name(service), limit)

    def oldest_s(self, service: str) -> float:
        """Return the age of a service's oldest waiting message in seconds, by this machine's clock.

        If the age is unknown, return 0.
        """
        with self._reachable("count"):
            sent_at = self._spool.oldest(queue_name(service))
        return 0.0 if sent_at is None else max(0.0, time.time() - sent_at)

    def waiting(self, service: str) -> set[str]:
        """Return the ids of the tasks waiting for a service.

        Messages that are not tasks are skipped: they become dead letters.
        """
        return {message.task_id for message in self._waiting(service) if isinstance(message, Message)}

    def misunderstood(self, service: str) -> list[Misunderstood]:
        """Return the messages waiting for a service that are not valid PoolBench messages."""
        return [message for message in self._waiting(service) if isinstance(message, Misunderstood)]

    def dead_letters(self, service: str, limit: int | None = None) -> list[DeadLetter]:
        """Return the newest `limit` dead letters of a service, oldest first, without removing them."""
        return [stored_letter.letter for stored_letter in self.stored_letters(service, limit)]

    def stored_letters(self, service: str, limit: int | None = None) -> list[StoredLetter]:
        """Return the letters of `dead_letters` in their stored form, which `remove_letter` needs."""
        with self._reachable():
            letters = list(self._spool.dead_letters(queue_name(service), limit))
        return [StoredLetter(read_letter(stored, service), stored) for stored in letters]

    def has_letter(self, each: StoredLetter) -> bool:
        """Return whether a dead letter is still there."""
        with self._reachable():
            return self._spool.has_dead(queue_name(each.letter.service), each.stored)

    def remove_letter(self, each: StoredLetter) -> bool:
        """Remove a dead letter. Return whether this call removed it: of several callers, exactly one gets True."""
        with self._reachable("remove"):
            return self._spool.remove_dead(queue_name(each.letter.service), each.stored)

    def num_dead_letters(self, service: str) -> int:
        """Return the number of dead letters of a service."""
        with self._reachable("count"):
            return self._spool.count_dead(queue_name(service))

    def summary(self, service: str) -> dict[str, Any]:
        """Return the state of a service's queue for status pages."""
        return {
            "waiting": self.depth(service),
            "oldest_s": round(self.oldest_s(service), 1),
            "not_understood": len(self.misunderstood(service)),
            "dead_letters": self.num_dead_letters(service),
        }

    def newest_letters(self) -> list[dict[str, Any]]:
        """Return the newest dead letters of each service, as JSON objects for status pages."""
        letters = [letter for service in SERVICES for letter in self.dead_letters(service, NEWEST_SHOWN)]
        return [{**letter.model_dump(mode="json", exclude={"task", "body"}), "line": letter.line} for letter in letters]

    def purge(self, service: str) -> int:
        """Remove a service's waiting messages and dead letters. Return how many were removed."""
        with self._reachable("remove"):
            return self._spool.clear(queue_name(service))

    def ping(self) -> None:
        """Raise BrokerError if the broker does not answer, or ConfigError if it lacks a command that we need."""
        with self._reachable():
            if self.broker.is_folder:
                self._spool.count(queue_name(SERVICES[0]), limit=1)
            else:
                require_commands(self.broker)

    def _waiting(self, service: str) -> list[Message | Misunderstood]:
        with self._reachable():
            return [understand(raw) for raw in self._spool.waiting(queue_name(service))]

    def _put(self, service: str, message: Message) -> None:
        with self._reachable("send"):
            self._spool.put(queue_name(service), message.encode())

    @contextmanager
    def _reachable(self, operation: str = "read") -> Iterator[None]:
        labels = {"broker": self.broker.kind, "operation": operation}
        try:
            with BROKER_SECONDS.timing(**labels):
                yield
        except self.broker.errors as error:
            BROKER_ERRORS.add(**labels)
            raise BrokerError(self.broker.explained(error)) from error
