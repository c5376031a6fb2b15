"""A bulk run that never ends: real tasks of a finished run, with outputs of their own, in the queue of each service."""

import itertools
import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.queue import TaskQueue

#: The kinds of tasks that take most of a run's time.
KINDS = (
    "extractor.extract",
    "pooler.annotate",
    "prober.probe",
    "scorer.score",
    "scorer.train",
    "steerer.generate",
)
_AHEAD = 2  # as many as a driver keeps waiting
_LOOK_S = 0.2


class Bulk:
    """Keeps tasks waiting for each service."""

    def __init__(self, queue: TaskQueue, templates: Sequence[Task]) -> None:
        self.sent = dict.fromkeys(SERVICES, 0)
        self._queue = queue
        rng = random.Random(0)
        self._turns: dict[str, Iterator[Task]] = {}
        for service in SERVICES:
            tasks = [task for task in templates if task.service == service and task.kind in KINDS]
            self._turns[service] = itertools.cycle(rng.sample(tasks, len(tasks)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the queues filled within the block, and empty them at its end."""
        stop = threading.Event()
        feeder = threading.Thread(target=self._feed, args=(stop,), daemon=True)
        feeder.start()
        try:
            yield
        finally:
            stop.set()
            feeder.join()
            for service in SERVICES:
                self._queue.purge(service)

    def _feed(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_S):
            for service in SERVICES:
                for _ in range(_AHEAD - self._queue.depth(service)):
                    self._queue.send(_again(next(self._turns[service])))
                    self.sent[service] += 1


def _again(task: Task) -> Task:
    """Return the same work with outputs of its own, so that it is computed again."""
    outputs = {role: f"{key.partition('.')[0]}.bench.{uuid.uuid4().hex}" for role, key in task.outputs.items()}
    return Task.model_validate(task.model_dump() | {"task_id": "", "outputs": outputs})
