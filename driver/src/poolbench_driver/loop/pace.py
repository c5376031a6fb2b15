"""When a task that was sent counts as lost, and when it is given up."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from poolbench.contracts.tasks import Task


class Clock(Protocol):
    """The clock of the loop. `bench/scale.py` uses a simulated clock."""

    def now_s(self) -> float:
        """Return seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


class SystemClock:
    """The clock of this machine, which nothing sets back."""

    now_s = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True)
class Pace:
    """Intervals and limits of the loop."""

    # Tasks kept waiting per service, or as many as are in work if these are more: every replica finds its next task,
    # and a cancelled run leaves few.
    queued_ahead: int = 2
    # A task that is neither waiting nor leased is sent again after this time, which doubles with each send up to
    # `max_vanished_s`. A gap is normal while a worker takes a task over.
    vanished_s: float = 10.0
    max_vanished_s: float = 60.0
    max_losses: int = 4  # workers that may die of a task before it is given up
    max_sends: int = 12  # sends before a task is given up that no worker ever took
    outage_s: float = 60.0  # how long the store or the broker may be unavailable before the run stops
    tick_s: float = 0.4  # pause between two rounds
    # A task that ended is looked up in the store at once. One in work is looked up this often, because its first
    # outputs are used before it has made the last one. Others in flight are looked up less often: another run may make
    # theirs.
    look_s: float = 2.0
    rare_look_s: float = 10.0


@dataclass
class InFlight:
    """A task that was sent and has no outcome yet."""

    task: Task
    clock: Clock = SYSTEM_CLOCK
    sends: int = 1
    losses: int = 0  # workers that died of it
    leased: bool = False  # a worker had it in the last round
    taken: bool = False  # a worker has had it since it was last sent
    last_seen_s: float = field(init=False)  # when it was last waiting or in work
    looked_s: float = field(init=False)  # when its outputs were last looked up

    def __post_init__(self) -> None:
        self.last_seen_s = self.looked_s = self.clock.now_s()

    def look_due(self, pace: Pace) -> bool:
        """Return whether it is time to look up the outputs of a task that has not ended."""
        makes_several = self.leased and len(self.task.outputs) > 1
        return self.clock.now_s() - self.looked_s >= (pace.look_s if makes_several else pace.rare_look_s)

    def looked(self) -> None:
        """Record that the outputs of the task were looked up."""
        self.looked_s = self.clock.now_s()

    def seen(self, *, leased: bool) -> None:
        """Record that the task waits, or that a worker has it."""
        self.leased, self.taken = leased, self.taken or leased
        self.last_seen_s = self.clock.now_s()

    def vanished(self, pace: Pace) -> bool:
        """Return whether the task was neither waiting nor in work for so long that it counts as lost."""
        patience_s = min(pace.vanished_s * 2 ** (self.sends - 1), pace.max_vanished_s)
        return self.clock.now_s() - self.last_seen_s > patience_s

    def hopeless(self, pace: Pace) -> bool:
        """Return whether the task is given up."""
        return self.losses >= pace.max_losses or self.sends >= pace.max_sends

    def sent_again(self) -> None:
        """Record that the task was lost and sent once more."""
        self.sends, self.taken = self.sends + 1, False
        self.seen(leased=False)
