"""Simulated time for threads: one of them runs at a time, and time passes only while all of them wait.

What a thread computes counts: its CPU time is added to the simulated time before its next wait. A simulated run
therefore takes as long as a real one in which every thread had a processor of its own, however busy this machine is.
"""

import heapq
import threading
import time
from collections.abc import Callable
from typing import Any


class Stopped(BaseException):
    """The simulation has ended while this thread was waiting."""


class Actor:
    """A thread of the simulation, with the CPU seconds that it took."""

    def __init__(self, name: str, act: Callable[[], Any]) -> None:
        self.name, self.act = name, act
        self.turn = threading.Semaphore(0)
        self.began_cpu_s = 0.0  # CPU time of the thread when it was resumed
        self.pauses = 0  # an event that was meant for an earlier pause is void
        self.cpu_s = 0.0
        self.error: BaseException | None = None
        self.done = False


class SimulatedClock:
    """A clock for `RunLoop`, and the scheduler of the threads that share it."""

    def __init__(self, *, count_computing: bool = True) -> None:
        self._now_s = 0.0
        self._count = count_computing
        self._events: list[tuple[float, int, int, Actor]] = []
        self._number = 0
        self._idle = threading.Semaphore(0)
        self._local = threading.local()
        self._stopping = False
        self._actors: list[Actor] = []

    def start(self, name: str, act: Callable[[], Any]) -> Actor:
        """Add a thread that begins at the present time."""
        actor = Actor(name, act)
        self._actors.append(actor)
        threading.Thread(target=self._run, args=(actor,), name=name, daemon=True).start()
        self._push(self._now_s, actor, actor.pauses)
        return actor

    def now_s(self) -> float:
        """Return the simulated time, with what the calling thread has computed since it was resumed."""
        actor = getattr(self._local, "actor", None)
        return self._now_s + (self._computed(actor) if actor else 0.0)

    @property
    def event_s(self) -> float:
        """Return the time of the present event, without what the calling thread has computed since."""
        return self._now_s

    def charge(self, seconds: float) -> None:
        """Count seconds as if the calling thread had computed for so long."""
        if actor := getattr(self._local, "actor", None):
            actor.began_cpu_s -= seconds

    def sleep(self, seconds: float) -> None:
        """Let so much simulated time pass, or less if another thread calls `wake`."""
        actor = self._local.actor
        self._push(self._now_s + self._computed(actor) + seconds, actor, actor.pauses + 1)
        self._pause(actor)

    def wait(self) -> None:
        """Wait until another thread calls `wake`."""
        self._pause(self._local.actor)

    def wake(self, actor: Actor, after_s: float) -> None:
        """Resume a thread that waits, so many seconds from now."""
        self._push(self.now_s() + after_s, actor, actor.pauses)

    def me(self) -> Actor:
        """Return the calling thread."""
        return self._local.actor  # type: ignore[no-any-return]

    def run(self, until: list[Actor]) -> float:
        """Run until these threads have ended, end the others, and return the simulated time; raise their error."""
        while self._events and not all(actor.done for actor in until):
            when_s, _, pause, actor = heapq.heappop(self._events)
            if pause != actor.pauses:
                continue
            self._now_s = max(self._now_s, when_s)
            self._resume(actor)
        ended_s, self._stopping = self._now_s, True
        for actor in self._actors:
            while not actor.done:
                self._resume(actor)
        for actor in self._actors:
            if actor.error:
                raise actor.error
        assert all(actor.done for actor in until)
        return ended_s

    def _push(self, when_s: float, actor: Actor, pause: int) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, self._number, pause, actor))

    def _computed(self, actor: Actor) -> float:
        return time.thread_time() - actor.began_cpu_s if self._count else 0.0

    def _resume(self, actor: Actor) -> None:
        if actor.done:
            return
        actor.turn.release()
        self._idle.acquire()

    def _pause(self, actor: Actor) -> None:
        actor.cpu_s += time.thread_time() - actor.began_cpu_s
        actor.pauses += 1
        self._idle.release()
        self._continue(actor)

    def _continue(self, actor: Actor) -> None:
        actor.turn.acquire()
        if self._stopping:
            raise Stopped
        actor.began_cpu_s = time.thread_time()

    def _run(self, actor: Actor) -> None:
        self._local.actor = actor
        try:
            self._continue(actor)
            actor.act()
        except Stopped:
            pass
        except BaseException as error:
            actor.error = error
        finally:
            actor.cpu_s += time.thread_time() - actor.began_cpu_s
            actor.done = True
            self._idle.release()
