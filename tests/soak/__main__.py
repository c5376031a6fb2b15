"""`python -m tests.soak`: break a part of a cluster every 30 s while it works; `make soak` calls it.

SOAK_MINUTES (30), SOAK_EVERY_S (30), SOAK_SEED (1) and SOAK_FAULTS (names with commas between them; all by default).
Writes `soak.json` below SOAK_OUT (`bench/out`). Exits with 1 if a run gave other figures, if a committed artifact was
lost, or if a fault was not recovered from.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.servers import machines, nodes, redis
from tests.servers.nodes import Nodes
from tests.soak.faults import FAULTS
from tests.soak.work import Work
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES

RECOVERY_S = 600.0  # a guard; the times themselves are reported
_STORE_BYTES = 256 * 2**20
_CONSOLE = Console(width=150)


def main() -> int:
    """Run the soak test; return the exit code."""
    if why := machines.missing() or ("" if redis.available() else "needs the Debian package redis-server"):
        _CONSOLE.print(f"the soak test cannot run here: {why}")
        return 2
    minutes, every_s = float(os.environ.get("SOAK_MINUTES", "30")), float(os.environ.get("SOAK_EVERY_S", "30"))
    seed, started = int(os.environ.get("SOAK_SEED", "1")), time.monotonic()
    _CONSOLE.print(f"starting four machines; {minutes:g} minutes, a fault every {every_s:g} s, seed {seed}")
    with nodes.serve(store_bytes=_STORE_BYTES) as cluster:
        expected = cluster.run()
        _CONSOLE.print(f"undisturbed run: {len(expected)} figures, {time.monotonic() - started:.0f} s since start")
        work = Work(cluster, expected)
        try:
            events = list(_disturb(cluster, work, minutes * 60, every_s, random.Random(seed)))
        finally:
            work.stop()
    return _report(work, events, {"minutes": minutes, "every_s": every_s, "seed": seed})


def _disturb(
    cluster: Nodes, work: Work, duration_s: float, every_s: float, rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Break one part after another; yield what was broken and how long the recovery took."""
    ends_at = time.monotonic() + duration_s
    for name in _order(rng):
        if time.monotonic() > ends_at:
            return
        next_at = time.monotonic() + every_s
        work.note_committed()
        began_s = time.time()
        FAULTS[name](cluster, rng)
        event = {"fault": name, **_recovery(cluster, began_s)}
        _CONSOLE.print(f"{event}")
        yield event
        time.sleep(max(0.0, min(next_at, ends_at) - time.monotonic()))


def _order(rng: random.Random) -> Iterator[str]:
    """Yield every fault once, in random order, and again in another order."""
    named = [name for name in os.environ.get("SOAK_FAULTS", "").split(",") if name] or list(FAULTS)
    if unknown := set(named) - FAULTS.keys():
        raise SystemExit(f"SOAK_FAULTS: unknown {', '.join(sorted(unknown))}; choose of {', '.join(FAULTS)}")
    while True:
        yield from rng.sample(named, len(named))


def _recovery(cluster: Nodes, began_s: float) -> dict[str, float | None]:
    """Return the seconds since a fault began until every service answers, and until another artifact is committed."""
    over_s, before = time.time(), cluster.manifests()
    found: dict[str, float | None] = {"answers_s": None, "works_s": None}

    def recovered() -> bool:
        elapsed = round(time.time() - began_s, 1)
        if found["answers_s"] is None and cluster.answering(over_s) == set(SERVICES):
            found["answers_s"] = elapsed
        # A run that ended has deleted its artifacts: the next one has others, which are newer.
        if found["works_s"] is None and any(before.get(path) != info for path, info in cluster.manifests().items()):
            found["works_s"] = elapsed
        return None not in found.values()

    with suppress(AssertionError):  # the report names what is null
        wait_until(recovered, RECOVERY_S)
    return found


def _report(work: Work, events: list[dict[str, Any]], settings: dict[str, Any]) -> int:
    late = [f"no recovery within {RECOVERY_S:g} s: {event}" for event in events if None in event.values()]
    findings = [*work.findings, *late]
    counts = {"runs": work.num_runs, "driver_starts": work.num_started, "faults": len(events)}
    report = {**settings, **counts, "findings": findings, "driver_messages": work.messages, "events": events}
    target = Path(os.environ.get("SOAK_OUT", "bench/out")) / "soak.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1))
    for line in (f"{counts}", *work.messages, *findings, f"written to {target}"):
        _CONSOLE.print(line, markup=False, soft_wrap=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
