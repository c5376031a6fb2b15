"""Leases: who is working on a task right now. A lease ends with its holder, however the holder ends."""

import fcntl
import hashlib
import json
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from poolbench.errors import BrokerError
from poolbench.queue.broker import Broker
from poolbench.telemetry.catalog import LEASE_LOSSES

TTL_S = 15.0
"""A Redis lease not renewed for this long is over; it is renewed three times within it."""

_ACQUIRE_ATTEMPTS, _LOOK_S = 500, 0.01


class Lease:
    """A lease that this process holds. Call `release`, or use the lease in a `with` block."""

    def __init__(self, task_id: str, release: Callable[[], None]) -> None:
        self.task_id = task_id
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the lease back. A second call has no effect."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class LeaseStore(Protocol):
    """A store of leases. A lease is an exclusive claim on a task, and ends when the process that holds it ends."""

    def acquire(self, task_id: str) -> Lease | None:
        """Claim a task. Return None if another holder has the lease of the task."""

    def alive(self, task_id: str) -> bool:
        """Return whether a live process holds the task."""

    def held(self, task_ids: Iterable[str]) -> set[str]:
        """Return the ids among `task_ids` whose tasks a live process holds."""


def open_leases(broker: Broker) -> LeaseStore:
    """Return the lease store that belongs to a broker."""
    if broker.is_folder:
        return FolderLeases(broker.folder / "leases")
    return RedisLeases(broker.url)


class FolderLeases:
    """Leases as locked files. The kernel releases the lock when the process ends, even by SIGKILL."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def acquire(self, task_id: str) -> Lease | None:
        path = self._path(task_id)
        for _ in range(_ACQUIRE_ATTEMPTS):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                is_held = not _try_lock(descriptor, fcntl.LOCK_SH)
                os.close(descriptor)
                if is_held:
                    return None
                time.sleep(_LOOK_S)  # `alive` of another process looks at the lock, on a busy machine for some time
            elif _is_current(descriptor, path):
                return self._held(task_id, descriptor, path)
            else:
                os.close(descriptor)  # the previous holder removed the file between our open and our lock
        return None

    def alive(self, task_id: str) -> bool:
        try:
            descriptor = os.open(self._path(task_id), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def held(self, task_ids: Iterable[str]) -> set[str]:
        return {task_id for task_id in task_ids if self.alive(task_id)}

    def _held(self, task_id: str, descriptor: int, path: Path) -> Lease:
        note = json.dumps({"task_id": task_id, "pid": os.getpid(), "since": time.time()})
        os.ftruncate(descriptor, 0)
        os.write(descriptor, note.encode())
        handle = _Descriptor(descriptor)
        _HELD.add(handle)

        def release() -> None:
            path.unlink(missing_ok=True)
            handle.close()

        return Lease(task_id, release)

    def _path(self, task_id: str) -> Path:
        return self.root / f"{hashlib.sha256(task_id.encode()).hexdigest()[:32]}.lock"


class _Descriptor:
    """An open file descriptor that is closed at most once."""

    def __init__(self, number: int) -> None:
        self.number: int | None = number

    def close(self) -> None:
        number, self.number = self.number, None
        if number is not None:
            os.close(number)


_HELD: "weakref.WeakSet[_Descriptor]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for handle in list(_HELD):
        handle.close()


# A forked child would keep its parent's lock alive after the parent is killed.
os.register_at_fork(after_in_child=_forget_in_child)


def _try_lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


_IF_OWNER = "if redis.call('get', KEYS[1]) == ARGV[1] then return {} else return 0 end"
_RENEW = _IF_OWNER.format("redis.call('pexpire', KEYS[1], ARGV[2])")
_DELETE = _IF_OWNER.format("redis.call('del', KEYS[1])")


class RedisLeases:
    """Leases as Redis keys. A key expires unless a heartbeat thread renews it."""

    def __init__(self, url: str, ttl_s: float = TTL_S) -> None:
        import redis

        self.ttl_ms = int(ttl_s * 1000)
        self._error, self._broker = redis.RedisError, Broker(url)
        self._redis: Any = self._broker.redis_client()

    def acquire(self, task_id: str) -> Lease | None:
        key, owner = _lease_key(task_id), uuid.uuid4().hex
        with self._reachable():
            if not self._redis.set(key, owner, nx=True, px=self.ttl_ms):
                return None
        stop = threading.Event()
        beat = threading.Thread(target=self._renew, args=(key, owner, stop), daemon=True)
        beat.start()

        def release() -> None:
            stop.set()
            beat.join()
            with suppress(self._error):  # Redis is away: the lease ends by itself
                self._redis.eval(_DELETE, 1, key, owner)

        return Lease(task_id, release)

    def alive(self, task_id: str) -> bool:
        with self._reachable():
            return bool(self._redis.exists(_lease_key(task_id)))

    def held(self, task_ids: Iterable[str]) -> set[str]:
        ids = list(task_ids)
        if not ids:
            return set()
        with self._reachable():
            owners = self._redis.mget([_lease_key(task_id) for task_id in ids])
        return {task_id for task_id, owner in zip(ids, owners, strict=True) if owner is not None}

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise BrokerError(self._broker.explained(error)) from error

    def _renew(self, key: str, owner: str, stop: threading.Event) -> None:
        while not stop.wait(self.ttl_ms / 3000):
            try:
                if not self._redis.eval(_RENEW, 1, key, owner, self.ttl_ms):
                    LEASE_LOSSES.add()
                    self._redis.set(key, owner, nx=True, px=self.ttl_ms)  # expired while Redis was away
            except self._error:
                continue  # the next renewal tries again; work continues, the manifest decides which attempt counts


def _lease_key(task_id: str) -> str:
    return f"poolbench:lease:{task_id}"
