"""Kombu's Redis transport, which delivers only understood messages, and rather those for the loaded model."""

import functools
import json
import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

import redis
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from poolbench.queue.affinity import LOOK, LOOK_AGAIN_S, Affinity
from poolbench.queue.envelope import Message, Misunderstood, service_of, understand
from poolbench.queue.letters import DeadLetter
from poolbench.queue.lists import RedisSpool

_LOG = logging.getLogger("poolbench.queue")


class Client(redis.Redis):
    """A Redis client that delivers only valid PoolBench messages, because kombu parses messages without checks."""

    def __init__(self, *args: Any, channel: "Channel", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channel = channel

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """Return the server's response.

        If kombu waits for a message, return the next valid message instead, or None if no queue has one.
        """
        response = super().parse_response(connection, command_name, **options)
        if command_name != "BRPOP":
            return response
        for queue in self._channel.active_queues:
            if (envelope := self._channel.next_message(queue)) is not None:
                return queue.encode(), json.dumps(envelope).encode()
        return None


class QoS(kombu_redis.QoS):
    """Kombu's record of messages in work, which frees the slot of a message even if the broker is away.

    Celery logs the error and goes on. If its only slot stayed taken, a consumer would not ask for another message, and
    so never notice that its connection is broken. The message is delivered again after the visibility timeout, unless
    the driver has sent its task again before.
    """

    def ack(self, delivery_tag: str) -> None:
        """Forget a message that is done. Raise redis.RedisError if the broker is away."""
        with self._freeing(delivery_tag):
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or put it back on its queue. Raise redis.RedisError if the broker is away."""
        with self._freeing(delivery_tag):
            super().reject(delivery_tag, requeue)

    @contextmanager
    def _freeing(self, delivery_tag: str) -> Iterator[None]:
        try:
            yield
        except redis.RedisError:
            virtual.QoS.ack(self, delivery_tag)
            raise


class Channel(kombu_redis.Channel):
    """Kombu's Redis channel, which delivers only messages that `understand` can parse."""

    QoS = QoS
    supports_fanout = False  # no set of bindings to read; a queue is addressed by its name
    _brpop_sent_at: Any = None

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Wait for a message without removing it from the queue.

        A killed consumer would lose a message that BRPOP has removed.
        """
        for queue in self._queue_cycle.consume(1):  # a consumer of ours has one
            self._in_poll, self._brpop_sent_at = self.client.connection, time.monotonic()
            wait_s = timeout or self.brpop_timeout
            self.client.connection.send_command("BLMOVE", queue, queue, "RIGHT", "RIGHT", wait_s)

    def next_message(self, queue: str) -> dict[str, Any] | None:
        """Return a new envelope for the next message to work on, or None if no valid message is waiting.

        The message then counts as in work. Messages that cannot be parsed become dead letters.
        """
        spool = RedisSpool(self._create_client())  # through a connection on which nothing waits
        for raw in self._preferred(spool, queue):
            message = understand(raw)
            if isinstance(message, Misunderstood):
                _bury(spool, queue, raw, message)
            elif (envelope := self._take(spool, queue, raw, message)) is not None:
                return envelope
        return None

    def _preferred(self, spool: RedisSpool, queue: str) -> list[bytes]:
        """Return the messages that this consumer may take.

        If messages are waiting and this consumer leaves all of them to other consumers, sleep `LOOK_AGAIN_S` first.
        """
        affinity: Affinity | None = self.connection.client.transport_options.get("affinity")
        if affinity is None or not affinity.chooses:
            return spool.next(queue, 1)
        waiting = spool.next(queue, LOOK)
        messages = affinity.preferred(waiting, _task_of)
        if waiting and not messages:
            affinity.sleep(LOOK_AGAIN_S)
        return messages

    def _take(self, spool: RedisSpool, queue: str, raw: bytes, message: Message) -> dict[str, Any] | None:
        """Mark a message as in work, and return its envelope. Return None if another consumer was faster."""
        envelope = message.envelope(queue)
        in_work, tag = (self.unacked_key, self.unacked_index_key), envelope["properties"]["delivery_tag"]
        return envelope if spool.take(queue, raw, in_work, tag, json.dumps([envelope, "", queue])) else None

    def _get_client(self) -> Any:
        super()._get_client()  # refuses releases of redis-py that are too old
        return functools.partial(Client, channel=weakref.proxy(self))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if (envelope := self.next_message(queue)) is None:
            raise Empty
        return envelope


class Transport(kombu_redis.Transport):
    """Kombu's Redis transport, with the channel that checks messages."""

    Channel = Channel


def _bury(spool: RedisSpool, queue: str, raw: bytes, message: Misunderstood) -> None:
    service = service_of(queue)
    if spool.bury_message(queue, raw, DeadLetter.of_message(service, message)):
        _LOG.error("dead letter of %s: %s", service, message.reason)


def _task_of(raw: bytes) -> dict[str, Any] | None:
    """Return the task of a message, or None if the bytes are not a valid PoolBench message."""
    message = understand(raw)
    return message.task if isinstance(message, Message) else None
