"""The messages of one queue, as a consumer takes them: parsed, after their pause, and rather for the loaded model."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from poolbench.queue.affinity import LOOK, Affinity
from poolbench.queue.broker import Broker
from poolbench.queue.letters import DeadLetter, Stored
from poolbench.queue.messages import Message, service_of, understand

#: Pause before a consumer looks again if messages wait and it may take none of them.
LOOK_AGAIN_S = 0.2
_LOG = logging.getLogger("poolbench.queue")


class Deliveries:
    """The messages of a queue for one consumer, of which several threads may take.

    A message that a consumer has taken is in no queue. If the consumer dies before the task is done, the task is
    neither waiting nor leased, so its driver sends it again.

    Args:
        broker: The broker.
        queue: Name of the queue.
        affinity: The choice of a consumer among the waiting tasks. None takes the first task.
        now_s: Function that returns the time in seconds.
        sleep: Function that waits for a number of seconds.
    """

    def __init__(
        self,
        broker: Broker,
        queue: str,
        affinity: Affinity | None = None,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spool, self._queue, self._affinity = broker.spool(), queue, affinity
        self._now_s, self._sleep = now_s, sleep
        self._lock = threading.Lock()
        self._found_s: dict[Stored, float] = {}  # when a message that pauses was found
        self._stuck: set[Stored] = set()  # neither understood nor buried, such as on a full disk

    def next(self, wait_s: float) -> Message | None:
        """Take the next message out of the queue, or return None. A caller asks again.

        Messages that are not understood become dead letters. Raise the errors of the broker (`Broker.errors`).

        Args:
            wait_s: Longest time to wait while the queue is empty, in seconds.
        """
        with self._lock:
            waiting = self._look()
            if not waiting:
                self._spool.wait(self._queue, wait_s)
                return None
            left = {stored: message for stored in waiting if (message := self._understood(stored)) is not None}
            choices = self._choices(left)
            for stored in choices:
                if self._spool.take(self._queue, stored):  # else another consumer was faster
                    return left[stored]
            if not choices and (left or self._stuck):
                self._sleep(LOOK_AGAIN_S)
            return None

    def _look(self) -> list[Stored]:
        """Return the messages to choose among: the first one where no other could be preferred."""
        first = self._spool.next(self._queue, 1)
        may_skip = (self._affinity is not None and self._affinity.chooses) or bool(self._found_s or self._stuck)
        return self._spool.next(self._queue, LOOK) if first and may_skip else first

    def _understood(self, stored: Stored) -> Message | None:
        """Parse a message. Put the dead letter of a message that is not understood in its place, and return None.

        The message stays if its letter cannot be written.
        """
        message = understand(stored.raw)
        if isinstance(message, Message):
            return message
        service = service_of(self._queue)
        try:
            if stored not in self._stuck and self._spool.bury_message(
                self._queue, stored, DeadLetter.of_message(service, message)
            ):
                _LOG.error("dead letter of %s: %s", service, message.reason)
        except OSError as error:
            self._stuck.add(stored)
            _LOG.error("the dead letter of %s cannot be written: %s", service, error)
        return None

    def _choices(self, messages: Mapping[Stored, Message]) -> list[Stored]:
        """Return the messages that this consumer may take now, in order."""
        self._found_s = {stored: found_s for stored, found_s in self._found_s.items() if stored in messages}
        ready = [stored for stored, message in messages.items() if not self._pauses(stored, message)]
        if self._affinity is None or not self._affinity.chooses:
            return ready
        position = self._affinity.choose([messages[stored].task for stored in ready])
        return [] if position is None else [ready[position]]

    def _pauses(self, stored: Stored, message: Message) -> bool:
        """Return whether the pause of a message is not over yet. It stays in the queue, so that it outlives us."""
        if not message.pause_s:
            return False
        now_s = self._now_s()
        return now_s - self._found_s.setdefault(stored, now_s) < message.pause_s
