"""Redis lists as queues: one list per queue, and one for its dead letters."""

from collections.abc import Iterator
from typing import Any

from poolbench.queue.letters import MOST_KEPT, DeadLetter, Stored
from poolbench.queue.messages import Message, failed_queue_name, service_of, understand

# One request, so that a consumer that is killed leaves the message or its letter.
_BURY = """
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('LTRIM', KEYS[2], 0, ARGV[3])
return 1
"""


class RedisSpool:
    """The messages and dead letters of all queues in a Redis database."""

    def __init__(self, client: Any) -> None:
        self._redis = client

    def put(self, queue: str, raw: bytes) -> None:
        self._redis.lpush(queue, raw)

    def count(self, queue: str, limit: int | None = None) -> int:
        num = int(self._redis.llen(queue))
        return num if limit is None else min(num, limit)

    def wait(self, queue: str, seconds: float) -> None:
        if seconds > 0:  # Redis would wait without end
            self._redis.blmove(queue, queue, seconds, "RIGHT", "RIGHT")  # the next message stays where it is

    def next(self, queue: str, number: int) -> list[Stored]:
        return [Stored(raw) for raw in reversed(self._redis.lrange(queue, -number, -1))]

    def take(self, queue: str, stored: Stored) -> bool:
        return bool(self._redis.lrem(queue, -1, stored.raw))

    def bury_message(self, queue: str, stored: Stored, letter: DeadLetter) -> bool:
        dead = failed_queue_name(letter.service)
        return bool(self._redis.eval(_BURY, 2, queue, dead, stored.raw, letter.encode(), MOST_KEPT - 1))

    def waiting(self, queue: str) -> Iterator[bytes]:
        yield from reversed(self._redis.lrange(queue, 0, -1))

    def oldest(self, queue: str) -> float | None:
        """Return the time in the headers of the oldest message."""
        message = understand(self._redis.lindex(queue, -1) or b"")
        return message.sent_at if isinstance(message, Message) else None

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
        self._redis.delete(queue, failed_queue_name(service_of(queue)))
        return num
