"""Cells of a bundle measured again: what catches scores that are wrong and fit their figures."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from poolbench.contracts import Row
from poolbench_driver.assemble import assemble
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import BoardSpec, FinishedRun
from poolbench_driver.contract.verification import Check, Say, State, named
from poolbench_driver.loop import Pace, RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.series import prepare_all
from poolbench_driver.sharing.bundle import Bundle
from poolbench_driver.stages.stage import Plan, PlannedWork, committed_keys

#: How far a figure may lie from the same of another machine, where its interval allows no more.
TOLERANCE = 0.002


@dataclass(frozen=True)
class Rerun:
    """Measures some cells of bundles again on a cluster."""

    count: int
    open_session: Callable[[], Session]
    open_display: Callable[[], Display]
    pace: Pace | None = None

    def __call__(self, bundle: Bundle, run: FinishedRun, say: Say) -> Check:
        """Return whether the figures of cells agree, which the digest of the bundle draws.

        Raises:
            PoolbenchError: The cluster cannot measure them.
        """
        session, suite = self.open_session(), SUITES.get(run.config.suite)
        artifacts, spec, rows = session.artifacts, suite.board, run.tables["results"].to_pylist()
        (job,) = prepare_all([run.config], session)
        cells = drawn(rows, spec, bundle.digest)[: self.count]
        say(f"rerun: {'; '.join(', '.join(map(str, cell)) for cell in cells)}")
        part = part_of(job.plan, {key for cell in cells for key in suite.behind(job.plan, *cell)})
        committed = committed_keys(artifacts)
        num_reused = sum(committed.issuperset(task.outputs.values()) for task in part.tasks.values())
        with closing(self.open_display()) as display:
            failures = RunLoop(part, artifacts, session.queue, session.leases, display, pace=self.pace).run()
        results = assemble(job.plan, artifacts, failures, run.id)["results"].to_pylist()
        again, problems, count = {row["cell_id"]: row["value"] for row in results}, list[str](), 0
        for row in rows:
            if (row[spec.block], row[spec.entrant], row["layer"]) in cells and (limit := _limit(row)) is not None:
                value, count = again.get(row["cell_id"]), count + 1
                if value is None or abs(value - row["value"]) > limit:
                    problems.append(f"{named(row)} is {row['value']:.6g}, and was measured again as {value}")
        if not count:
            return Check(
                "rerun", State.UNCHECKED, "the bundle has no figure with an interval, which measuring would check"
            )
        done = f"{len(part.tasks) - num_reused} tasks were done for them, and {num_reused} had been in this store"
        return Check.of("rerun", problems, f"{count} figures of {len(cells)} cells agree; {done}")


def drawn(rows: Sequence[Row], spec: BoardSpec, digest: str) -> list[tuple[str, str, int]]:
    """Return cells (block, entrant, layer) in an order that a digest draws: who makes a bundle cannot choose them."""
    cells = {
        (row[spec.block], row[spec.entrant], row["layer"])
        for row in rows
        if row["metric"] == spec.primary and row["value"] is not None
    }
    return sorted(cells, key=lambda cell: hashlib.sha256(f"{digest} {cell}".encode()).digest())


def part_of(plan: Plan, keys: set[str]) -> Plan:
    """Return the part of a plan that makes some artifacts, with all that they are made from."""
    left, done, tasks = [*keys], set[str](), set[str]()
    while left:
        key = left.pop()
        if key not in done and (task := plan.producers.get(key)) is not None:
            tasks.add(task.task_id)
            left += task.inputs.values()
        done.add(key)
    work = PlannedWork(
        {name: task for name, task in plan.tasks.items() if name in tasks},
        {key: step for key, step in plan.local.items() if key in done},
    )
    return replace(plan, work=work)


def _limit(row: Row) -> float | None:
    """Return how far a figure may lie from the same of another machine; None where nothing is said of it.

    Probes give the same on all machines but for rounding. Of steered texts some may differ, so their figures must agree
    within their uncertainty.
    """
    if row["value"] is None or row["ci_low"] is None or row["metric"] == "rank.mean":
        return None
    return TOLERANCE if row["metric"].startswith("d1.") else max(TOLERANCE, (row["ci_high"] - row["ci_low"]) / 2)
