"""`python -m tests.trials.soak`: break a part of a cluster every 30 s while it works; `make soak` calls it.

SOAK_MINUTES (30) counts from the start of the first run, which is undisturbed; the last run may end later.
SOAK_EVERY_S (30), SOAK_SEED (1), SOAK_STORE (`s3`, or `folder`) and SOAK_FAULTS (names with commas between them; all by
default). Writes `bench/out/soak.json`. Exits with 1 if a run gave other figures, if a committed
artifact was lost, or if a fault was not recovered from; with 3, and what hung, if it does not end in time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.servers import ceph, machines, nodes, redis
from tests.servers.nodes import Nodes
from tests.trials.soak.deadline import Deadline, HungError
from tests.trials.soak.faults import faults
from tests.trials.soak.faults.disks import SIZES
from tests.trials.soak.recovery import RECOVERY_S, strike
from tests.trials.soak.work import Work

_CONSOLE = Console(width=150)
_PROGRAMS = ("tc", "iptables", "g++")
_SPARE_S = 1500.0  # beside the minutes: the start, the last recovery and the end of the last run


@dataclass(frozen=True)
class Plan:
    """What is broken, when, and for how long."""

    minutes: float
    every_s: float
    seed: int
    store: str
    faults: tuple[str, ...]

    @classmethod
    def load(cls) -> Plan:
        """Read the environment. Raise SystemExit if it names no fault or store."""
        given = os.environ.get
        store = given("SOAK_STORE", "s3")
        if store not in ("s3", "folder"):
            raise SystemExit(f"SOAK_STORE is {store!r}; choose `s3` or `folder`")
        known = faults(store)
        named = tuple(name for name in given("SOAK_FAULTS", "").split(",") if name) or tuple(known)
        if unknown := set(named) - known.keys():
            raise SystemExit(f"SOAK_FAULTS: unknown {', '.join(sorted(unknown))}; choose of {', '.join(known)}")
        minutes, every_s = float(given("SOAK_MINUTES", "30")), float(given("SOAK_EVERY_S", "30"))
        return cls(minutes, every_s, int(given("SOAK_SEED", "1")), store, named)


def main() -> int:
    """Run the soak test; return the exit code."""
    plan = Plan.load()
    if why := _missing(plan):
        _CONSOLE.print(f"the soak test cannot run here: {why}")
        return 2
    _CONSOLE.print(f"starting four machines: {plan}", markup=False)
    started = time.monotonic()
    disks = {name: size for name, size in SIZES.items() if plan.store == "folder" or name != "store"}
    with Deadline(plan.minutes * 60 + _SPARE_S) as deadline, nodes.serve(s3=plan.store == "s3", disks=disks) as cluster:
        _CONSOLE.print(f"{time.monotonic() - started:.0f} s: all services answer")
        work = Work(cluster)
        try:
            events = list(_disturb(cluster, work, plan, deadline))
            deadline.phase = "the end of the last run"
            work.stop()
        except HungError as hung:
            _CONSOLE.print(f"{hung}", cluster.ends_of_logs(), sep="\n", markup=False, soft_wrap=True)
            return 3
        finally:
            work.abort()
    return _report(work, events, plan)


def _missing(plan: Plan) -> str:
    """Return what this machine lacks."""
    if why := machines.missing() or ("" if redis.available() else "needs the Debian package redis-server"):
        return why
    lacking = [name for name in _PROGRAMS if shutil.which(name) is None]
    lacking += ceph.missing() if plan.store == "s3" else []
    return f"needs {', '.join(lacking)}; tests/README.md names the Debian packages" if lacking else ""


def _disturb(cluster: Nodes, work: Work, plan: Plan, deadline: Deadline) -> Iterator[dict[str, Any]]:
    """Break one part after another; yield what was broken and how long the recovery took."""
    rng, known, began = random.Random(plan.seed), faults(plan.store), time.monotonic()
    deadline.phase = "the first run, which is undisturbed"
    work.first.wait()
    _CONSOLE.print(f"undisturbed run: {time.monotonic() - began:.0f} s")
    ends_at = began + plan.minutes * 60
    for name in _order(plan, rng):
        if time.monotonic() > ends_at:
            return
        next_at = time.monotonic() + plan.every_s
        deadline.phase = f"the fault `{name}`, or the recovery from it"
        work.note_committed()
        event = {"fault": name, **strike(cluster, known[name], rng)}
        _CONSOLE.print(f"{event}")
        yield event
        time.sleep(max(0.0, min(next_at, ends_at) - time.monotonic()))


def _order(plan: Plan, rng: random.Random) -> Iterator[str]:
    """Yield every fault once, in random order, and again in another order."""
    while True:
        yield from rng.sample(plan.faults, len(plan.faults))


def _report(work: Work, events: list[dict[str, Any]], plan: Plan) -> int:
    late = [
        f"no recovery within {RECOVERY_S:g} s: {event}"
        for event in events
        if None in (event["answers_s"], *event["works_s"].values())
    ]
    findings = [*work.findings, *late]
    counts = {"runs": work.num_runs, "driver_starts": work.num_started, "faults": len(events)}
    report = {**vars(plan), **counts, "findings": findings, "driver_messages": work.messages, "events": events}
    target = Path("bench/out/soak.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1))
    messages = [f"{number} x {text}" for text, number in Counter(work.messages).items()]
    for line in (f"{counts}", *messages, *findings, f"written to {target}"):
        _CONSOLE.print(line, markup=False, soft_wrap=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
