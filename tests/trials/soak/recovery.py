"""How long the recovery from a fault takes."""

import os
import random
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tests.servers.nodes import Nodes
from tests.trials.soak.faults import Fault
from tests.trials.soak.faults.brokers import OF_MESSAGES, several_wait
from tests.trials.soak.faults.processes import busy
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES
from poolbench.errors import StoreError
from poolbench.storage import ObjectInfo

RECOVERY_S = 600.0  # a guard; the times themselves are reported
_POLL_S = 0.5
_WORK_COMES_S = 60.0  # a fault waits so long for a service that has work, or for messages
_Manifests = dict[str, ObjectInfo]


def strike(nodes: Nodes, fault: Fault, rng: random.Random) -> dict[str, Any]:
    """Break a part; return the seconds from then until the recovery.

    Returns:
        `answers_s`, until every service answers a question for its health that was asked after the fault; `works_s`,
        by service until its next artifact is committed, for the services that had work and were interrupted; and the
        machine's `load`. A time is None if the recovery did not come within `RECOVERY_S`.
    """
    with suppress(AssertionError):
        wait_until(lambda: (several_wait if fault in OF_MESSAGES else busy)(nodes), _WORK_COMES_S, _POLL_S)
    at_work, before, began_s = busy(nodes), nodes.manifests(), time.monotonic()
    interrupted = sorted(at_work & set(fault(nodes, rng)))

    def measured(recovered: Callable[[], bool]) -> float | None:
        with suppress(AssertionError):
            wait_until(recovered, RECOVERY_S, _POLL_S)
            return round(time.monotonic() - began_s, 1)
        return None

    with ThreadPoolExecutor(1) as other:
        answers_s = other.submit(measured, lambda: nodes.answering() == set(SERVICES))
        works_s = _by_service(nodes, interrupted, before, began_s)
        return {
            "answers_s": answers_s.result(),
            "works_s": works_s,
            "load": round(os.getloadavg()[0], 1),
        }


def _by_service(nodes: Nodes, services: Collection[str], before: _Manifests, began_s: float) -> dict[str, float | None]:
    """Return by service the seconds until it commits an artifact that is none of `before`."""
    found: dict[str, float | None] = dict.fromkeys(services)

    def all_work() -> bool:
        try:
            now = nodes.manifests()
        except StoreError:
            return False
        # A run that ended has deleted its artifacts: the next one has others, which are newer.
        new = {path.split("/")[1].partition(".")[0] for path, info in now.items() if before.get(path) != info}
        elapsed_s = round(time.monotonic() - began_s, 1)
        found.update({service: elapsed_s for service in new & found.keys() if found[service] is None})
        return None not in found.values()

    with suppress(AssertionError):
        wait_until(all_work, RECOVERY_S, _POLL_S)
    return found
