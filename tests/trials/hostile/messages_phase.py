"""The second phase: hostile messages among proper ones, on a folder or on Redis."""

import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Queue
from typing import Any

from tests.trials.hostile.messages import Message, envelope, message, probe_task
from tests.trials.hostile.settings import Settings

from poolbench.contracts.wire import SERVICES, failure_path
from poolbench.errors import PoolbenchError
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.envelope import queue_name
from poolbench.storage import Artifacts

_SIGN_EVERY = 50
_DEADLINE_S = 60.0
_POLL_S = 0.5
_READ_S = 10.0


@dataclass
class Delivered:
    """What came of all messages."""

    sent: Counter[str] = field(default_factory=Counter)
    letters_before: int = 0
    letters_after: int = 0
    num_signs: int = 0
    signs_missing: list[str] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    wall_s: float = 0.0


class Post:
    """Puts messages into a broker as anybody could who may write to it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._redis: Any = None
        if not broker.is_folder:
            import redis

            self._redis = redis.Redis.from_url(broker.url)

    def put(self, each: Message) -> None:
        """Puts one message."""
        if self._redis is not None:
            self._redis.lpush(queue_name(each.service), each.raw)
            return
        folder = self.broker.folder / "messages"
        target = folder / f"{time.time_ns():020d}-{uuid.uuid4().hex}.{queue_name(each.service)}.msg"
        partial = folder / f"{target.name}.partial"
        partial.write_bytes(each.raw)
        os.replace(partial, target)


def deliver(broker: Broker, artifacts: Artifacts, settings: Settings) -> Delivered:
    """Sends every message and waits until the queues are empty and each service has answered its signs."""
    queue, post, made = TaskQueue(broker), Post(broker), Delivered()
    started = time.monotonic()
    made.letters_before = _letters(queue, made)
    numbers: Sequence[int] = settings.only or range(settings.num_messages)
    signs: list[str] = []
    for place, number in enumerate(numbers):
        each = message(settings.seed, number)
        post.put(each)
        made.sent["task" if each.is_task else "no message"] += 1
        if place % _SIGN_EVERY == 0:
            signs += [_sign(post, artifacts, name, place) for name in SERVICES]
    signs += [_sign(post, artifacts, name, -1 - settings.num_messages) for name in SERVICES]
    made.num_signs = len(signs)
    _await(queue, artifacts, signs, made)
    made.letters_after = _letters(queue, made)
    _judge(made)
    _forget(queue, artifacts, signs, made)
    made.wall_s = time.monotonic() - started
    return made


def _sign(post: Post, artifacts: Artifacts, service: str, place: int) -> str:
    task = probe_task(service, abs(place))
    path = failure_path(task["task_id"])
    artifacts.store.delete(path)
    post.put(Message(place, service, "sign", envelope(task, service, id=task["task_id"])))
    return path


def _await(queue: TaskQueue, artifacts: Artifacts, signs: list[str], made: Delivered) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        made.signs_missing = [path for path in signs if not artifacts.store.exists(path)]
        made.waiting = {name: _depth(queue, name) for name in SERVICES}
        if not made.signs_missing and not any(made.waiting.values()):
            return
        time.sleep(_POLL_S)


def _depth(queue: TaskQueue, service: str) -> int:
    try:
        return _within(lambda: queue.depth(service))
    except Exception:  # a reader that falls over a message, or waits for one, is what is looked for
        return -1


def _letters(queue: TaskQueue, made: Delivered) -> int:
    try:
        return sum(_within(partial(_count_letters, queue, name)) for name in SERVICES)
    except Exception as error:
        made.findings.append(f"the dead letters cannot be read: {type(error).__name__}: {str(error)[:200]}")
        return 0


def _count_letters(queue: TaskQueue, service: str) -> int:
    return len(queue.dead_letters(service))


def _within(work: Callable[[], int]) -> int:
    """The result of some work; a reader that hangs must not hold up the trial too."""
    result: Queue[int | Exception] = Queue()

    def do() -> None:
        try:
            result.put(work())
        except Exception as error:
            result.put(error)

    threading.Thread(target=do, daemon=True).start()
    try:
        found = result.get(timeout=_READ_S)
    except Empty:
        raise TimeoutError(f"no answer within {_READ_S:.0f} s") from None
    if isinstance(found, Exception):
        raise found
    return found


def _judge(made: Delivered) -> None:
    if made.signs_missing:
        shown = ", ".join(made.signs_missing[:3])
        made.findings.append(f"{len(made.signs_missing)} proper tasks among the messages were not done: {shown}")
    if stuck := {name: depth for name, depth in made.waiting.items() if depth}:
        made.findings.append(f"messages wait without end: {json.dumps(stuck)} (-1: the queue cannot be read)")
    wanted = sum(count for kind, count in made.sent.items() if kind != "task")
    found = made.letters_after - made.letters_before
    if found < wanted:
        made.findings.append(f"{wanted} messages were none, but only {found} dead letters came of them")


def _forget(queue: TaskQueue, artifacts: Artifacts, signs: list[str], made: Delivered) -> None:
    """Leaves the cluster as it was found; dead letters that were there before are not ours to remove."""
    for path in signs:
        artifacts.store.delete(path)
    if not made.letters_before:
        for name in SERVICES:
            with suppress(PoolbenchError):
                queue.purge(name)
