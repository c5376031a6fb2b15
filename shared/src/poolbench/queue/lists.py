"""Redis lists as queues: one list per queue and priority, and one for its dead letters."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from kombu.transport.redis import PRIORITY_STEPS
from kombu.transport.redis import Channel as KombuChannel

from poolbench.queue.envelope import Message, failed_queue_name, service_of, understand
from poolbench.queue.letters import MOST_KEPT, DeadLetter, Stored

# A consumer that is killed between two requests loses no message, because one request moves it.
_MOVE = "if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end "
_TAKE = f"{_MOVE} redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2]) return 1"
_BURY = f"{_MOVE} redis.call('LPUSH', KEYS[2], ARGV[2]) redis.call('LTRIM', KEYS[2], 0, ARGV[3]) return 1"


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

    def next(self, queue: str, number: int) -> list[tuple[str, bytes]]:
        """Return the messages that are delivered next, in this order, each after its list."""
        messages: list[tuple[str, bytes]] = []
        for key in keys_of(queue):
            if missing := number - len(messages):
                messages += [(key, raw) for raw in reversed(self._redis.lrange(key, -missing, -1))]
        return messages

    def take(self, key: str, raw: bytes, in_work: Sequence[str], tag: str, record: str) -> bool:
        """Move a message from a list to those in work; return whether this call did, and not another consumer.

        Args:
            in_work: Kombu's hash of the records of messages in work, and the sorted set of their times.
        """
        return bool(self._redis.eval(_TAKE, 3, key, *in_work, raw, tag, record, time.time()))

    def bury_message(self, key: str, raw: bytes, letter: DeadLetter) -> bool:
        """Replace a message by its dead letter; return whether this call did, and not another consumer."""
        dead = failed_queue_name(letter.service)
        return bool(self._redis.eval(_BURY, 2, key, dead, raw, letter.encode(), MOST_KEPT - 1))

    def waiting(self, queue: str) -> Iterator[bytes]:
        for key in keys_of(queue):
            yield from reversed(self._redis.lrange(key, 0, -1))

    def oldest(self, queue: str) -> float | None:
        """Return the earliest time in the headers of the oldest messages of each priority."""
        oldest = [understand(raw) for key in keys_of(queue) if (raw := self._redis.lindex(key, -1))]
        times = [message.sent_at for message in oldest if isinstance(message, Message)]
        return min((sent_at for sent_at in times if sent_at is not None), default=None)

    def bury(self, queue: str, letter: DeadLetter) -> None:
        key = failed_queue_name(service_of(queue))
        self._redis.pipeline().lpush(key, letter.encode()).ltrim(key, 0, MOST_KEPT - 1).execute()

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
