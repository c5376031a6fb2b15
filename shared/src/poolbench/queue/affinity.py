"""Which waiting task a replica takes: rather one for the language model that it has loaded, and rather on a free GPU.

Loading a model takes a replica minutes. Without this, two runs with different models would make every replica load
models again and again, because all replicas of a service take from one queue.

Services that share a GPU slow each other. While another service works on its GPU, a replica therefore leaves tasks to
replicas whose GPU is free, for longer than most tasks take.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

#: Waiting tasks that a replica compares. The driver keeps about as many waiting as there are replicas.
LOOK = 32
#: Seconds without work for its model after which a replica takes a task of another model.
PATIENCE_S = 30.0
#: Seconds after which it takes one although there is work for its model: several times what loading a model takes, so
#: that a few GPUs that serve several models work for most of the time.
TURN_S = 900.0
#: Seconds for which a replica leaves a task to replicas with a free GPU, which look several times a second. Two tasks
#: on one GPU take as long as one after the other, and both end late. The long ones are those that others wait for.
CROWDED_PATIENCE_S = 120.0

Body = Mapping[str, Any]  # a task as it was sent


class Affinity:
    """The choice that a replica makes among the tasks waiting for its service.

    Args:
        loaded: Function that returns the id of the loaded model, or "" if no model is loaded.
        now_s: Function that returns the time in seconds.
        crowded: Function that returns whether another service works on the GPU of this replica.
    """

    def __init__(
        self,
        loaded: Callable[[], str],
        now_s: Callable[[], float] = time.monotonic,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loaded, self._now_s, self._crowded = loaded, now_s, crowded
        self._model = ""  # the loaded one when this replica last chose
        self._seen_s: dict[str, float] = {}  # when this replica first saw a task with that model loaded, by task id
        self._busy_s, self._took = -inf, False  # when there last was work for that model; whether a task was taken then

    @property
    def chooses(self) -> bool:
        """Return whether the replica may leave tasks to other replicas. Otherwise, it takes the first task."""
        return bool(self._loaded()) or self._crowded()

    def choose(self, waiting: Sequence[Body]) -> int | None:
        """Return the index of the task to take, or None to leave all tasks to other replicas for now.

        This is usually the first task for the loaded model. A task for another model is taken if it has waited long
        enough.
        """
        loaded, now_s = self._loaded(), self._now_s()
        least_s = CROWDED_PATIENCE_S if self._crowded() else 0.0
        if not loaded and not least_s:
            return 0 if waiting else None
        suits = [not loaded or model_of(task) in ("", loaded) for task in waiting]
        ids = [str(task.get("task_id")) for task in waiting]
        if loaded != self._model:
            self._model, self._seen_s = loaded, {}
        # How long this replica has seen each task, with its present model loaded.
        recent = {name: seen_s for name, seen_s in self._seen_s.items() if now_s - seen_s < 2 * TURN_S}
        self._seen_s = dict.fromkeys(ids, now_s) | recent
        waited_s = [now_s - self._seen_s[name] for name in ids]
        if any(suits) or self._took:
            self._busy_s = now_s
        idle = now_s - self._busy_s >= PATIENCE_S
        others = (
            position
            for position, seconds in enumerate(waited_s)
            if not suits[position] and (seconds >= TURN_S or (idle and seconds >= max(PATIENCE_S, least_s)))
        )
        positions = (position for position, seconds in enumerate(waited_s) if suits[position] and seconds >= least_s)
        choice = next(others, next(positions, None))
        self._took = choice is not None
        return choice


def model_of(task: Body) -> str:
    """Return the id of the language model that a task needs, or "" if the task needs no language model."""
    params = task.get("params")
    return str(params.get("model", "")) if isinstance(params, Mapping) else ""
