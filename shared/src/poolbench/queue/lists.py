"""Redis lists as queues: one list per queue and priority, and one for its dead letters."""

from collections.abc import Iterator
from typing import Any

from kombu.transport.redis import PRIORITY_STEPS
from kombu.transport.redis import Channel as KombuChannel

from poolbench.queue.envelope import Message, failed_queue_name, service_of, understand
from poolbench.queue.letters import DeadLetter, Stored


def keys_of(queue: str) -> list[str]:
    """Return the lists of a queue, highest priority first in kombu's order."""
    return [f"{queue}{KombuChannel.sep}{priority}" if priority else queue for priority in PRIORITY_STEPS]


class RedisSpool:
    """The messages and dead letters of all queues in a Redis database."""

    def __init__(self, client: Any) -> None:
        self._redis = client

    def count(self, queue: str, limit: int | None = None) -> int:
        num = sum(self._redis.llen(key) for key in keys_of(queue))
        return num if limit is None else min(num, limit)

    def next(self, key: bytes, number: int) -> list[bytes]:
        """Return the messages of a list that are delivered next, in this order."""
        return list(reversed(self._redis.lrange(key, -number, -1)))

    def put_back(self, key: bytes, raw: bytes) -> None:
        """Put a message back to where it was taken."""
        self._redis.rpush(key, raw)

    def take(self, key: bytes, raw: bytes) -> bool:
        """Take a message out of a list; return whether this call did, and not another consumer."""
        return bool(self._redis.lrem(key, -1, raw))

    def waiting(self, queue: str) -> Iterator[bytes]:
        for key in keys_of(queue):
            yield from reversed(self._redis.lrange(key, 0, -1))

    def oldest(self, queue: str) -> float | None:
        """Return the earliest time in the headers of the oldest messages of each priority."""
        oldest = [understand(raw) for key in keys_of(queue) if (raw := self._redis.lindex(key, -1))]
        times = [message.sent_at for message in oldest if isinstance(message, Message)]
        return min((sent_at for sent_at in times if sent_at is not None), default=None)

    def bury(self, queue: str, letter: DeadLetter) -> None:
        self._redis.lpush(failed_queue_name(service_of(queue)), letter.encode())

    def count_dead(self, queue: str) -> int:
        return int(self._redis.llen(failed_queue_name(service_of(queue))))

    def dead_letters(self, queue: str, limit: int | None) -> Iterator[Stored]:
        newest_first = self._redis.lrange(failed_queue_name(service_of(queue)), 0, (limit or 0) - 1)
        return map(Stored, reversed(newest_first))

    def has_dead(self, queue: str, stored: Stored) -> bool:
        return self._redis.lpos(failed_queue_name(service_of(queue)), stored.raw) is not None

    def remove_dead(self, queue: str, stored: Stored) -> bool:
        return bool(self._redis.lrem(failed_queue_name(service_of(queue)), 1, stored.raw))

    def clear(self, queue: str) -> int:
        num = self.count(queue) + self.count_dead(queue)
        self._redis.delete(*keys_of(queue), failed_queue_name(service_of(queue)))
        return num
