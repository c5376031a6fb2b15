"""Kombu's Redis transport, which delivers only understood messages, and rather those for the loaded model."""

import functools
import json
import logging
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
from poolbench.queue.lists import RedisSpool, keys_of

_LOG = logging.getLogger("poolbench.queue")
_POP_S = 0.01


class Client(redis.Redis):
    """A client whose BRPOP returns messages of ours only, because kombu parses the response unchecked."""

    def __init__(self, *args: Any, channel: "Channel", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channel = channel

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """Return the server's response, or None for a message that was not understood: it becomes a dead letter."""
        response = super().parse_response(connection, command_name, **options)
        return self._channel.screen(*response) if command_name == "BRPOP" and response else response


class QoS(kombu_redis.QoS):
    """Kombu's record of messages in work.

    It frees the slot of a message although the broker is away. Celery logs the error and goes on. With its only slot
    taken, a consumer would ask for no message again, and so never notice that its connection is broken. The message is
    delivered again after the visibility timeout, unless the driver has sent its task again before.
    """

    def ack(self, delivery_tag: str) -> None:
        """Forget a message that is done. Raise redis.RedisError if the broker is away."""
        with self._freeing(delivery_tag):
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message up, or put it back. Raise redis.RedisError if the broker is away."""
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
    """Kombu's Redis channel behind `understand`."""

    QoS = QoS
    supports_fanout = False  # no set of bindings to read; a queue is addressed by its name

    def screen(self, key: bytes, item: bytes) -> tuple[bytes, bytes] | None:
        """Return what is delivered for an entry of a list: a new envelope, or nothing."""
        queue = key.decode().rsplit(self.sep, 1)[0]
        spool = RedisSpool(self._create_client())  # through a connection that no BRPOP occupies
        message = understand(item)
        if isinstance(message, Misunderstood):
            _LOG.error("dead letter of %s: %s", service_of(queue), message.reason)
            spool.bury(queue, DeadLetter.of_message(service_of(queue), message))
            return None
        next_message = self._choose(spool, key, item, message)
        return None if next_message is None else (key, json.dumps(next_message.envelope(queue)).encode())

    def _choose(self, spool: RedisSpool, key: bytes, item: bytes, first: Message) -> Message | None:
        """Return the message to deliver: the first one, or another that suits the loaded model; None for none."""
        affinity: Affinity | None = self.connection.client.transport_options.get("affinity")
        if affinity is None or not affinity.chooses or affinity.choose([first.task]) == 0:
            return first
        others = [(raw, message) for raw in spool.next(key, LOOK) if (message := _deliverable(raw)) is not None]
        position = affinity.choose([first.task, *(message.task for _, message in others)])
        if position == 0:
            return first
        spool.put_back(key, item)
        if position is None:
            affinity.sleep(LOOK_AGAIN_S)
            return None
        raw, message = others[position - 1]
        return message if spool.take(key, raw) else None

    def _get_client(self) -> Any:
        super()._get_client()  # refuses releases of redis-py that are too old
        return functools.partial(Client, channel=weakref.proxy(self))

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        with self.conn_or_acquire() as client:
            response = client.brpop(keys_of(queue), timeout=timeout or _POP_S)
        if response is None:
            raise Empty
        return json.loads(response[1])


class Transport(kombu_redis.Transport):
    """Redis transport with the channel that checks."""

    Channel = Channel


def _deliverable(raw: bytes) -> Message | None:
    """Return a message; None if it is none of ours, or pauses."""
    message = understand(raw)
    return message if isinstance(message, Message) and not message.pause_s else None
