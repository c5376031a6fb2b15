"""Cells of a bundle measured again: what catches scores that are wrong and fit their figures."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from poolbench.contracts import Row
from poolbench.errors import ConfigError
from poolbench.statuses import Status
from poolbench_driver.assemble import assemble
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.abilities import MeasuresAlone
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.contract.verification import Check, Say, State, named
from poolbench_driver.loop import Pace, RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.records import Run
from poolbench_driver.series import prepare_all
from poolbench_driver.stages.stage import Plan, PlannedWork, committed_keys

#: How far a figure may lie from the same of another machine, where its interval allows no more.
TOLERANCE = 0.002
#: The same of the mean scores that D3 is measured in, and of a gate's verdict: another machine trains a scorer that is
#: not quite the same.
SCORER_TOLERANCE = 0.05
_OF_SCORERS = ("scorer.gate", "scorer.positive_mean", "scorer.negative_mean")


@dataclass(frozen=True)
class Rerun:
    """Measures some cells of bundles again on a cluster.

    Attributes:
        draw: Random seed of the choice of cells. The verifier chooses it after the bundle was submitted.
    """

    count: int
    draw: int
    open_session: Callable[[], Session]
    open_display: Callable[[], Display]
    pace: Pace | None = None

    def __call__(self, run: Run, say: Say) -> Check:
        """Return whether the figures of the drawn cells agree.

        Raises:
            PoolbenchError: The cluster cannot measure them.
        """
        suite, spec = run.suite.load(), run.suite.board
        if not isinstance(suite, MeasuresAlone):
            raise ConfigError(f"no cell of the suite {run.suite.id} is measured alone; leave out --rerun")
        session = self.open_session()
        artifacts, rows = session.artifacts, run.tables["results"].to_pylist()
        (job,) = prepare_all([run.config], session)
        cells = drawn(rows, spec, self.draw)[: self.count]
        say(f"rerun, draw {self.draw}: {'; '.join(', '.join(map(str, cell)) for cell in cells)}")
        part = part_of(job.plan, {key for cell in cells for key in suite.behind(job.plan, *cell)})
        committed = committed_keys(artifacts)
        num_reused = sum(committed.issuperset(task.outputs.values()) for task in part.tasks.values())
        with closing(self.open_display()) as display:
            failures = RunLoop(part, artifacts, session.queue, session.leases, display, pace=self.pace).run()
        results = assemble(job.plan, artifacts, failures, run.id)["results"].to_pylist()
        again, problems, count = {row["cell_id"]: row for row in results}, list[str](), 0
        for row in _behind_cells(rows, cells, spec):
            if (limit := _limit(row)) is not None:
                count += 1
                problems += _differences(row, again.get(row["cell_id"]), limit)
        if not count:
            why = "the drawn cells have no figure with an interval, which measuring would check"
            return Check("rerun", State.UNCHECKED, f"draw {self.draw}: {why}")
        done = f"{len(part.tasks) - num_reused} tasks were done for them, and {num_reused} had been in this store"
        check = Check.of("rerun", problems, f"{count} figures of {len(cells)} cells agree; {done}")
        return replace(check, note=f"draw {self.draw}: {check.note}")


def drawn(rows: Sequence[Row], spec: BoardSpec, draw: int) -> list[tuple[str, str, int]]:
    """Return cells (block, entrant, layer) in an order that a number draws."""
    cells = {(row[spec.block], row[spec.entrant], row["layer"]) for row in rows if row["metric"] == spec.primary}
    return random.Random(draw).sample(sorted(cells), len(cells))


def _behind_cells(rows: Sequence[Row], cells: Collection[tuple[str, str, int]], spec: BoardSpec) -> list[Row]:
    """Return the rows of cells, and the rows of the scorers that score the cells' texts."""
    of_cells = [row for row in rows if (row[spec.block], row[spec.entrant], row["layer"]) in cells]
    scorers = {row[column] for row in of_cells for column in ("scorer", "neighbour")} - {None}
    return of_cells + [row for row in rows if row["metric"] in _OF_SCORERS and row["scorer"] in scorers]


def part_of(plan: Plan, keys: set[str]) -> Plan:
    """Return the part of a plan that makes some artifacts and all their inputs."""
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
    """Return the allowed difference of a figure from another machine's figure, or None without a limit.

    Probes give equal figures on all machines, except for rounding. Some steered texts may differ, so that their figures
    only need to agree within their uncertainty.
    """
    is_d1, is_of_scorer = row["metric"].startswith("d1."), row["metric"] in _OF_SCORERS
    if row["metric"] == "rank.mean" or row["status"] == Status.FAILED:
        return None
    if row["value"] is None:
        return TOLERANCE if is_d1 else None
    if row["ci_low"] is None:
        return SCORER_TOLERANCE if is_of_scorer else None
    return TOLERANCE if is_d1 else max(TOLERANCE, (row["ci_high"] - row["ci_low"]) / 2)


def _differences(row: Row, again: Row | None, limit: float) -> Iterator[str]:
    """Yield the differences of a row from the row that was measured again."""
    value = None if again is None else again["value"]
    if (value is None) != (row["value"] is None) or (value is not None and abs(value - row["value"]) > limit):
        stored = row["status"] if row["value"] is None else f"{row['value']:.6g}"
        yield f"{named(row)} is {stored}, and was measured again as {value}"
    elif again is not None and value is not None and again["n"] != row["n"]:
        yield f"{named(row)} is of {row['n']} items, and was measured again on {again['n']}"
