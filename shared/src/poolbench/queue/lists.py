"""Redis lists as queues: one list per queue and priority, and one for its dead letters."""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import redis
from kombu.transport.redis import PRIORITY_STEPS
from kombu.transport.redis import Channel as KombuChannel

from poolbench.errors import shown
from poolbench.queue.envelope import (
    KEPT_BYTES,
    MAX_MESSAGE_BYTES,
    Message,
    Misunderstood,
    failed_queue_name,
    queue_name,
    service_of,
    too_large,
    understand,
)
from poolbench.queue.letters import MAX_LETTER_BYTES, DeadLetter, Stored

_LOG = logging.getLogger("poolbench.queue")

# Entries beyond the limit are cut on the server, so that no client receives half a gigabyte for an error message.
_READ = """
local items = redis.call('lrange', KEYS[1], ARGV[1], ARGV[2])
local found = {}
for i, item in ipairs(items) do
  found[i] = {#item, #item > tonumber(ARGV[3]) and string.sub(item, 1, ARGV[4]) or item}
end
return found
"""
# Find an entry by its size and first bytes, because the rest of a long one was never read; remove it if asked to.
_FIND_CUT = """
if redis.call('type', KEYS[1]).ok ~= 'list' then return 0 end
for _, item in ipairs(redis.call('lrange', KEYS[1], 0, -1)) do
  if #item == tonumber(ARGV[1]) and string.sub(item, 1, #ARGV[2]) == ARGV[2] then
    return ARGV[3] == 'remove' and redis.call('lrem', KEYS[1], 1, item) or 1
  end
end
return 0
"""
_REMOVE_NO_LIST = """
if redis.call('type', KEYS[1]).ok == 'list' then return 0 end
return redis.call('del', KEYS[1])
"""
_WRONG_TYPE = "WRONGTYPE"


def keys_of(queue: str) -> list[str]:
    """Return the lists of a queue, highest priority first in kombu's order."""
    return [f"{queue}{KombuChannel.sep}{priority}" if priority else queue for priority in PRIORITY_STEPS]


def is_wrong_type(error: redis.RedisError) -> bool:
    """Return whether a command was sent for a key that is not a list.

    Redis gives its code as a word of the message only: the first one, or the first after the prefix of a pipeline.
    """
    return _WRONG_TYPE in str(error)


class RedisSpool:
    """The messages and dead letters of all queues in a Redis database."""

    def __init__(self, client: Any) -> None:
        self._redis = client

    def count(self, queue: str, limit: int | None = None) -> int:
        num = sum(self._length(key) for key in keys_of(queue))
        return num if limit is None else min(num, limit)

    def next(self, key: bytes, number: int) -> list[bytes]:
        """Return the messages of a list that are delivered next, in this order; too large ones are left out."""
        found = self._redis.eval(_READ, 1, key, -number, -1, MAX_MESSAGE_BYTES, 0)
        return [raw for size, raw in reversed(found) if size <= MAX_MESSAGE_BYTES]

    def put_back(self, key: bytes, raw: bytes) -> None:
        """Put a message back to where it was taken."""
        self._redis.rpush(key, raw)

    def take(self, key: bytes, raw: bytes) -> bool:
        """Take a message out of a list; return whether this call did, and not another consumer."""
        return bool(self._redis.lrem(key, -1, raw))

    def waiting(self, queue: str) -> Iterator[bytes | Misunderstood]:
        for key in keys_of(queue):
            yield from self._read(key, 0, MAX_MESSAGE_BYTES)

    def oldest(self, queue: str) -> float | None:
        """Return the earliest time in the headers of the oldest messages of each priority."""
        found = []
        for key in keys_of(queue):
            if (raw := self._of_list(self._redis.lindex, key, -1)) and len(raw) <= MAX_MESSAGE_BYTES:
                message = understand(raw)
                found.append(message.sent_at if isinstance(message, Message) else None)
        return min((sent_at for sent_at in found if sent_at is not None), default=None)

    def bury(self, queue: str, letter: DeadLetter) -> None:
        key = failed_queue_name(service_of(queue))
        try:
            self._redis.lpush(key, letter.encode())
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise
            aside = self._move_aside(key)
            self._redis.lpush(key, letter.encode())
            if aside is not None:
                self.bury(queue, DeadLetter.of_message(letter.service, aside))

    def count_dead(self, queue: str) -> int:
        return self._length(failed_queue_name(service_of(queue)))

    def dead_letters(self, queue: str, limit: int | None) -> Iterator[Stored]:
        return map(Stored, self._read(failed_queue_name(service_of(queue)), limit or 0, MAX_LETTER_BYTES))

    def has_dead(self, queue: str, stored: Stored) -> bool:
        key, found = failed_queue_name(service_of(queue)), stored.found
        if isinstance(found, bytes):
            return self._of_list(self._redis.lpos, key, found) is not None
        if found.readable:
            return bool(self._redis.eval(_FIND_CUT, 1, key, found.num_bytes, found.raw, "look"))
        return self._redis.type(key) not in (b"list", b"none")

    def remove_dead(self, queue: str, stored: Stored) -> bool:
        key, found = failed_queue_name(service_of(queue)), stored.found
        if isinstance(found, bytes):
            return bool(self._of_list(self._redis.lrem, key, 1, found))
        if found.readable:
            return bool(self._redis.eval(_FIND_CUT, 1, key, found.num_bytes, found.raw, "remove"))
        return bool(self._redis.eval(_REMOVE_NO_LIST, 1, key))

    def clear(self, queue: str) -> int:
        num = self.count(queue) + self.count_dead(queue)
        self._redis.delete(*keys_of(queue), failed_queue_name(service_of(queue)))
        return num

    def clear_away(self, service: str, kind: bytes, keys: Iterable[str]) -> None:
        """Make dead letters of the values of these keys that do not have the expected kind."""
        for key in keys:
            if self._redis.type(key) not in (kind, b"none") and (found := self._move_aside(key)):
                _LOG.error("dead letter of %s: %s", service, found.reason)
                self.bury(queue_name(service), DeadLetter.of_message(service, found))

    def _move_aside(self, key: str) -> Misunderstood | None:
        """Remove a key; return its start as Redis would save it, or None if another process was faster."""
        aside = f"{key}.{uuid.uuid4().hex}"
        try:
            self._redis.rename(key, aside)
        except redis.ResponseError:
            return None
        kind, raw = self._redis.type(aside).decode(), self._redis.dump(aside) or b""
        self._redis.delete(aside)
        return Misunderstood.of(
            f"the key {shown(key)} held a {kind}, which is none of ours; the bytes are its DUMP", raw
        )

    def _of_list(self, command: Callable[..., Any], *arguments: Any) -> Any:
        """Return the response to a command on a list; None if the key holds something else."""
        try:
            return command(*arguments)
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise
            return None

    def _length(self, key: str) -> int:
        length = self._of_list(self._redis.llen, key)
        return 1 if length is None else int(length)

    def _read(self, key: str, newest: int, limit: int) -> Iterator[bytes | Misunderstood]:
        try:
            items = self._redis.eval(_READ, 1, key, 0, newest - 1, limit, KEPT_BYTES)
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise
            items = []
            yield Misunderstood(f"the key {shown(key)} holds no list", readable=False)
        for size, item in reversed(items):
            yield item if size <= limit else too_large(item, size)
