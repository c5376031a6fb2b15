"""Which waiting task a replica takes: rather one for the language model that it has loaded, and rather on a free GPU.

Loading a model takes a replica minutes. Without this, two runs with different models would make every replica load
models again and again, because all replicas of a service take from one queue.

Services that share a GPU slow each other. While another service works on its GPU, a replica therefore leaves tasks for
a moment to replicas whose GPU is free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

#: Waiting tasks that a replica compares. The driver keeps about as many waiting as there are replicas.
LOOK = 32
#: Seconds for which a replica leaves a task to replicas that have its model loaded.
PATIENCE_S = 30.0
#: Seconds for which a replica leaves a task to replicas with a free GPU: they look every `LOOK_AGAIN_S`.
CROWDED_PATIENCE_S = 1.0
#: Pause before a replica looks again if it has left all tasks to others.
LOOK_AGAIN_S = 0.2

Item = TypeVar("Item")
Body = Mapping[str, Any]  # a task as it was sent


class Affinity:
    """The choice of one replica among the tasks that wait for its service.

    Args:
        loaded: Returns the id of the model that is loaded; empty if none is.
        now_s: The time in seconds.
        sleep: Called with the seconds of a pause after all tasks were left to others.
        patience_s: Every task is taken at the latest so long after this replica has first seen it.
        crowded: Returns whether another service works on the GPU of this replica.
    """

    def __init__(
        self,
        loaded: Callable[[], str],
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = PATIENCE_S,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loaded, self._now_s, self.sleep, self._patience_s = loaded, now_s, sleep, patience_s
        self._crowded = crowded
        self._seen_s: dict[str, float] = {}  # when a task was first left to others, by its id

    @property
    def chooses(self) -> bool:
        """Return whether tasks may be left to others; otherwise the first one is as good as any."""
        return bool(self._loaded()) or self._crowded()

    def choose(self, waiting: Sequence[Body]) -> int | None:
        """Return the position of the task to take, the first one first; None to leave all of them for now."""
        loaded, now_s = self._loaded(), self._now_s()
        least_s = CROWDED_PATIENCE_S if self._crowded() else 0.0
        if not loaded and not least_s:
            return 0 if waiting else None
        ids = [str(task.get("task_id")) for task in waiting]
        recent = {name: seen_s for name, seen_s in self._seen_s.items() if now_s - seen_s < 2 * self._patience_s}
        self._seen_s = dict.fromkeys(ids, now_s) | recent
        for position, (task_id, task) in enumerate(zip(ids, waiting, strict=True)):
            suits = not loaded or model_of(task) in ("", loaded)
            if now_s - self._seen_s[task_id] >= (least_s if suits else self._patience_s):
                return position
        return None

    def preferred(self, waiting: Sequence[Item], task_of: Callable[[Item], Body | None]) -> list[Item]:
        """Return the waiting items that may be taken, in this order.

        Args:
            waiting: All of them, the first one first.
            task_of: Returns the task of an item; None for what is no task, which is taken at once.
        """
        if not self.chooses:
            return list(waiting)
        tasks = [task_of(item) for item in waiting[:LOOK]]
        known = [task for task in tasks if task is not None]
        if len(known) < len(tasks):
            return [item for item, task in zip(waiting, tasks, strict=False) if task is None]
        position = self.choose(known)
        return [] if position is None else [waiting[position]]


def model_of(task: Body) -> str:
    """Return the id of the language model that a task needs; empty if it needs none."""
    params = task.get("params")
    return str(params.get("model", "")) if isinstance(params, Mapping) else ""
