"""Kombu's Redis transport, which delivers only understood messages."""

import functools
import json
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

import redis
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from poolbench.errors import shown
from poolbench.queue.affinity import LOOK, LOOK_AGAIN_S, Affinity
from poolbench.queue.envelope import Message, Misunderstood, queue_name, service_of, understand
from poolbench.queue.letters import DeadLetter
from poolbench.queue.lists import RedisSpool, is_wrong_type, keys_of

_LOG = logging.getLogger("poolbench.queue")
_POP_S = 0.01


class Client(redis.Redis):
    """A client whose BRPOP returns messages of ours only, because kombu parses the response unchecked."""

    def __init__(self, *args: Any, channel: "Channel", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channel = channel

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """Return the server's response, or None for a message that was not understood: it becomes a dead letter."""
        if command_name != "BRPOP":
            return super().parse_response(connection, command_name, **options)
        try:
            answer = super().parse_response(connection, command_name, **options)
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise
            return self._channel.clear_away_wrong_types()
        return self._channel.screen(*answer) if answer else None


class QoS(kombu_redis.QoS):
    """Kombu's record of messages in work, which survives what others may have written into it."""

    channel: "Channel"

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a message as in work."""
        self._retry_after_clearing(super().append, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Forget a message that is done. Raise redis.RedisError if the broker is away."""
        with self._freeing(delivery_tag):
            self._retry_after_clearing(super().ack, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message up, or put it back. Raise redis.RedisError if the broker is away."""
        with self._freeing(delivery_tag):
            super().reject(delivery_tag, requeue)

    @contextmanager
    def _freeing(self, delivery_tag: str) -> Iterator[None]:
        """Free the slot of a message although the broker is away.

        Celery logs the error and goes on. With its only slot taken, a consumer would ask for no message again, and so
        never notice that its connection is broken. The message is delivered again after the visibility timeout, unless
        the driver has sent its task again before.
        """
        try:
            yield
        except redis.RedisError:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Deliver again what has been in work for too long."""
        self._retry_after_clearing(super().restore_visible, *args, **kwargs)

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Deliver one message again; an invalid record becomes a dead letter."""
        with self.channel.conn_or_acquire(client) as connected:
            raw = connected.hget(self.unacked_key, tag)
        if raw is None or _is_record(raw):
            super().restore_by_tag(tag, client, leftmost)
        elif service := self.channel.service:
            self._remove_from_indices(tag).execute()
            self.channel.bury(service, Misunderstood.of(f"no record of a message in work: {shown(raw[:40])}", raw))

    def _retry_after_clearing(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except redis.ResponseError as error:
            if not is_wrong_type(error) or not self.channel.service:
                raise
            self.channel.spool.clear_away(self.channel.service, b"hash", [self.unacked_key])
            self.channel.spool.clear_away(self.channel.service, b"zset", [self.unacked_index_key])
            call(*args, **kwargs)


class Channel(kombu_redis.Channel):
    """Kombu's Redis channel behind `understand`."""

    QoS = QoS
    supports_fanout = False  # no set of bindings to read; a queue is addressed by its name

    @property
    def spool(self) -> RedisSpool:
        """Return the lists, through a connection that no BRPOP occupies."""
        return RedisSpool(self._create_client())

    @property
    def service(self) -> str:
        """Return the service whose queue is consumed; empty in a producer."""
        return str(self.connection.client.transport_options.get("service", ""))

    def screen(self, key: bytes, item: bytes) -> tuple[bytes, bytes] | None:
        """Return what is delivered for an entry of a list: a new envelope, or nothing."""
        queue = key.decode().rsplit(self.sep, 1)[0]
        found = understand(item)
        if isinstance(found, Misunderstood):
            self.bury(service_of(queue), found)
            return None
        if (chosen := self._chosen(key, item, found)) is None:
            return None
        return key, json.dumps(chosen.envelope(queue)).encode()

    def _chosen(self, key: bytes, item: bytes, first: Message) -> Message | None:
        """Return the message to deliver: the first one, or another that suits the loaded model; None for none."""
        affinity: Affinity | None = self.connection.client.transport_options.get("affinity")
        if affinity is None or not affinity.chooses or affinity.choose([first.task]) == 0:
            return first
        spool = self.spool
        others = [each for each in map(understood, spool.next(key, LOOK)) if each is not None]
        position = affinity.choose([first.task, *(message.task for _, message in others)])
        if position == 0:
            return first
        spool.put_back(key, item)
        if position is None:
            affinity.sleep(LOOK_AGAIN_S)
            return None
        raw, message = others[position - 1]
        return message if spool.take(key, raw) else None

    def bury(self, service: str, found: Misunderstood) -> None:
        """Add a dead letter; the log has it even if Redis refuses it."""
        _LOG.error("dead letter of %s: %s", service, found.reason)
        self.spool.bury(queue_name(service), DeadLetter.of_message(service, found))

    def clear_away_wrong_types(self) -> None:
        """Make dead letters of values that are not lists but stand in the place of consumed queues."""
        for queue in self.active_queues:
            self.spool.clear_away(service_of(queue), b"list", keys_of(queue))

    def _get_client(self) -> Any:
        super()._get_client()  # refuses releases of redis-py that are too old
        return functools.partial(Client, channel=weakref.proxy(self))

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        with self.conn_or_acquire() as client:
            answer = client.brpop(keys_of(queue), timeout=timeout or _POP_S)
        if answer is None:
            raise Empty
        return json.loads(answer[1])

    def _size(self, queue: str) -> int:
        return self.spool.count(queue)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        try:
            super()._put(queue, message, **kwargs)
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise
            self.spool.clear_away(service_of(queue), b"list", keys_of(queue))
            super()._put(queue, message, **kwargs)


class Transport(kombu_redis.Transport):
    """Redis transport with the channel that checks."""

    Channel = Channel


def understood(raw: bytes) -> tuple[bytes, Message] | None:
    """Return a message with its bytes; None if it is none of ours, or pauses."""
    found = understand(raw)
    return (raw, found) if isinstance(found, Message) and not found.pause_s else None


def _is_record(raw: bytes) -> bool:
    """Return whether kombu can restore this: a message of ours, and the queue that it came from."""
    try:
        message, exchange, routing_key = json.loads(raw)
        text = json.dumps(message)
    except (ValueError, TypeError, RecursionError):
        return False
    ours = isinstance(routing_key, str) and routing_key == queue_name(service_of(routing_key))
    return ours and exchange == "" and not isinstance(understand(text.encode()), Misunderstood)
