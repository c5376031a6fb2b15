"""Measure what becomes of the deliveries of tasks in a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from poolbench.statuses import TaskOutcome
from poolbench.telemetry.catalog import TASK_SECONDS, TASKS, TASKS_RUNNING
from poolbench.telemetry.instruments import OTHER

#: Outcomes of deliveries that ran a handler.
_WORKED = (TaskOutcome.DONE, TaskOutcome.FAILED)


@dataclass
class Delivery:
    """One delivery of a task of a known kind, or `other`; `outcome` is set when it has ended."""

    kind: str
    outcome: str = TaskOutcome.FAILED


class DeliveryMeter:
    """Counts and times the deliveries of one worker."""

    def __init__(self, service: str, kinds: Collection[str]) -> None:
        self._service, self._kinds = service, kinds
        self._num_running = 0
        self._lock = threading.Lock()

    @contextmanager
    def measuring(self, kind: object) -> Iterator[Delivery]:
        """Measure the block as one delivery. An exception decides the outcome by its attribute `outcome`."""
        # The kind comes from a message, and a label must not.
        known = kind if isinstance(kind, str) and kind in self._kinds else OTHER
        delivery, began = Delivery(known), time.perf_counter()
        self._running(+1)
        try:
            yield delivery
        except Exception as error:
            delivery.outcome = getattr(error, "outcome", TaskOutcome.FAILED)
            raise
        finally:
            self._running(-1)
            TASKS.add(service=self._service, kind=known, outcome=delivery.outcome)
            if delivery.outcome in _WORKED:
                TASK_SECONDS.observe(time.perf_counter() - began, service=self._service, kind=known)

    def _running(self, change: int) -> None:
        with self._lock:
            self._num_running += change
            TASKS_RUNNING.set(self._num_running, service=self._service)
