"""A broker with its store and consumer, for the time of a measurement."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, LeaseStore, TaskQueue, open_leases
from poolbench.storage import Artifacts, open_store
from queueing.consumer import KIND, OUTPUT

BENCH = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Place:
    """One broker and the object store beside it."""

    queue: TaskQueue
    artifacts: Artifacts
    leases: LeaseStore
    root: Path

    @classmethod
    def of(cls, url: str, root: Path) -> "Place":
        """Open a broker by its address; the store is a folder below `root`."""
        broker = Broker(url)
        return cls(TaskQueue(broker), Artifacts(open_store(str(root / "store"))), open_leases(broker), root)

    @contextmanager
    def consumer(self) -> Iterator[None]:
        """Run a consumer of this broker in a process of its own."""
        places = {"POOLBENCH_BROKER": self.queue.broker.url, "POOLBENCH_STORE": str(self.root / "store")}
        with (self.root / "consumer.log").open("wb") as log:
            command = [sys.executable, "-m", "queueing.consumer"]
            process = subprocess.Popen(command, cwd=BENCH, env=os.environ | places, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def new_task() -> Task:
    """Return a task that the consumer can do, with an output of its own."""
    return Task(kind=KIND, outputs={OUTPUT: f"bench.{uuid.uuid4().hex}"})


@contextmanager
def places(root: Path) -> Iterator[dict[str, Place]]:
    """Yield the folder broker, and a Redis server of this machine if there is one to start."""
    from tests.servers import redis as redis_server

    for name in ("folder", "redis"):
        (root / name).mkdir()
    brokers = {"folder": Place.of(f"filesystem://{root}/folder/queue", root / "folder")}
    if not redis_server.available():
        print("no Redis: install Debian's redis-server to measure it too")
        yield brokers
        return
    with redis_server.serve(root / "redis") as url:
        yield brokers | {"redis": Place.of(url, root / "redis")}
