"""A broker and a store for tests of dead letters, and commands that run at once."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from tests.poison import QUEUE

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, TaskQueue, open_leases
from poolbench.storage import Artifacts, open_store
from poolbench_driver.cluster.dead_letters import DeadLetters, LetterFilter, LetterOutcome, Report

ALL = LetterFilter()
NUM_COMMANDS = 6


@dataclass
class Bench:
    """A broker and a store."""

    url: str
    root: Path

    def __post_init__(self) -> None:
        self.queue, self.artifacts = TaskQueue(Broker(self.url)), Artifacts(open_store(str(self.root / "store")))

    def letters(self) -> DeadLetters:
        """What one command uses: connections of its own."""
        return DeadLetters(TaskQueue(Broker(self.url)), self.artifacts, open_leases(Broker(self.url)))

    def bury(self, *tasks: Task) -> None:
        for task in tasks:
            self.queue.bury(task.service, task.model_dump(mode="json"), "no luck")

    def put(self, raw: bytes, number: int = 0) -> None:
        """Writes bytes among the dead letters, past the client."""
        if self.url.startswith("redis"):
            redis.Redis.from_url(self.url).lpush(f"{QUEUE}.failed", raw)
        else:
            (self.root / "queue" / "dead" / f"{number:020d}.{QUEUE}.msg").write_bytes(raw)

    def at_once(self, act: Callable[[DeadLetters], list[Report]]) -> list[list[Report]]:
        """Runs several commands at once."""
        commands, done = [self.letters() for _ in range(NUM_COMMANDS)], []
        barrier = threading.Barrier(len(commands))

        def run(letters: DeadLetters) -> None:
            barrier.wait()
            done.append(act(letters))

        threads = [threading.Thread(target=run, args=(letters,)) for letters in commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == len(commands)
        return done


def verdicts(reports: Any) -> list[LetterOutcome]:
    return [report.verdict for report in reports]
