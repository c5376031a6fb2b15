"""How patient the loop is: when a task that was sent counts as lost, and when it is given up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from poolbench.contracts.tasks import Task


@dataclass(frozen=True)
class Pace:
    """How the loop paces itself.

    Attributes:
        queued_ahead: Tasks kept waiting per service at least; as many as are in work where those are more.
            So every replica finds its next task, however many there are, and a cancelled run leaves little.
        vanished_s: A task that is neither waiting nor leased is sent again after this long, twice as long
            each further time up to ``max_vanished_s``. A gap is normal while a worker takes a task over.
        max_losses: Workers that may die of a task before it is given up.
        max_sends: Sends after which it is given up though no worker was ever seen at it.
        outage_s: How long store or broker may be away before the run stops.
        tick_s: Pause between two looks.
    """

    queued_ahead: int = 2
    vanished_s: float = 10.0
    max_vanished_s: float = 60.0
    max_losses: int = 4
    max_sends: int = 12
    outage_s: float = 60.0
    tick_s: float = 0.4


@dataclass
class InFlight:
    """A task that was sent and has no outcome yet.

    Attributes:
        task: The task.
        sends: How often it was sent.
        losses: Workers that died of it.
        leased: A worker was at it when the loop last looked.
        taken: A worker was at it since it was last sent.
        last_seen_s: When it was last waiting or in work.
    """

    task: Task
    sends: int = 1
    losses: int = 0
    leased: bool = False
    taken: bool = False
    last_seen_s: float = field(default_factory=time.monotonic)

    def seen(self, *, leased: bool) -> None:
        """It waits, or a worker is at it."""
        self.leased, self.taken = leased, self.taken or leased
        self.last_seen_s = time.monotonic()

    def vanished(self, pace: Pace) -> bool:
        """Whether it has been neither waiting nor in work for so long that its worker or the broker lost it."""
        patience_s = min(pace.vanished_s * 2 ** (self.sends - 1), pace.max_vanished_s)
        return time.monotonic() - self.last_seen_s > patience_s

    def hopeless(self, pace: Pace) -> bool:
        """Whether it is not worth sending again."""
        return self.losses >= pace.max_losses or self.sends >= pace.max_sends

    def sent_again(self) -> None:
        """It was lost, and sent once more."""
        self.sends, self.taken = self.sends + 1, False
        self.seen(leased=False)
