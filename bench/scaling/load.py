"""The load of store and broker: requests, bytes, processor time."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from poolbench.queue import Broker, client, deliveries, lists
from poolbench.queue.messages import understand
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench_driver.loop.outcomes import REQUESTS_AT_ONCE, Found, Item, Requests
from scaling.clock import SimulatedClock


@contextmanager
def parsed_once(clock: SimulatedClock) -> Iterator[None]:
    """Parse equal messages once: all idle replicas look at those that wait. The time of parsing counts each time."""

    @lru_cache(maxsize=1024)
    def parsed(raw: bytes) -> tuple[Any, float]:
        began_s = time.thread_time()
        return understand(raw), time.thread_time() - began_s

    def remembered(raw: bytes) -> Any:
        hits = parsed.cache_info().hits
        document, seconds = parsed(raw)
        if parsed.cache_info().hits > hits:
            clock.charge(seconds)
        return document

    with ExitStack() as patches:
        for module in (client, deliveries, lists):
            patches.enter_context(patch.object(module, "understand", remembered))
        yield


class CountingStore:
    """The driver's view of a store: counts requests, and lets the time pass that each would take over a network."""

    def __init__(self, store: ObjectStore, clock: SimulatedClock, latency_s: float) -> None:
        self._store, self._clock, self.latency_s = store, clock, latency_s
        self.together = False  # whether a batch of requests waits as a whole
        self.requests: Counter[str] = Counter()
        self.num_bytes = 0  # of contents written and read

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if not callable(attribute):
            return attribute

        def counted(*args: Any, **options: Any) -> Any:
            self.requests[name] += 1
            if self.latency_s and not self.together:
                self._clock.sleep(self.latency_s)
            answer = attribute(*args, **options)
            self.num_bytes += sum(len(part) for part in (*args, answer) if isinstance(part, bytes))
            return answer

        return counted


class SimulatedRequests(Requests):
    """Requests that run at once, each after the other in this thread, and wait as many at a time as in reality."""

    def __init__(self, artifacts: Artifacts, store: CountingStore, clock: SimulatedClock) -> None:
        super().__init__(artifacts)
        self._store, self._clock = store, clock

    def each(self, act: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        self._store.together = True
        answers = [act(item) for item in items]
        self._store.together = False
        self._clock.sleep(math.ceil(len(items) / REQUESTS_AT_ONCE) * self._store.latency_s)
        return answers


def store_figures(store: CountingStore, elapsed_s: float) -> dict[str, Any]:
    """Return the requests to the store and their bytes."""
    total = store.requests.total()
    return {"requests": dict(store.requests), "requests_per_s": total / elapsed_s, "bytes": store.num_bytes}


@dataclass(frozen=True)
class BrokerLoad:
    """What a Redis server has done so far."""

    commands: Counter[str]  # by name; those that scripts call count too
    num_bytes: int
    cpu_s: float


def broker_load(broker: Broker) -> BrokerLoad | None:
    """Return what a Redis server has done so far; None for a folder."""
    if broker.is_folder:
        return None
    client = broker.redis_client()
    info, by_name = client.info(), client.info("commandstats")
    commands = Counter({name.removeprefix("cmdstat_"): figures["calls"] for name, figures in by_name.items()})
    num_bytes = info["total_net_input_bytes"] + info["total_net_output_bytes"]
    return BrokerLoad(commands, num_bytes, info["used_cpu_user"] + info["used_cpu_sys"])


def broker_figures(before: BrokerLoad | None, after: BrokerLoad | None, elapsed_s: float) -> dict[str, Any] | None:
    """Return the load between two moments."""
    if before is None or after is None:
        return None
    commands = after.commands - before.commands
    cpu_s, num_bytes = after.cpu_s - before.cpu_s, after.num_bytes - before.num_bytes
    return {
        "commands": dict(commands.most_common()),
        "commands_per_s": commands.total() / elapsed_s,
        "bytes": num_bytes,
        "bytes_per_s": num_bytes / elapsed_s,
        "cpu_s": cpu_s,
        "cores": cpu_s / elapsed_s,
    }
