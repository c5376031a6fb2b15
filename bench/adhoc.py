"""Short requests to every service, alone and while a bulk run fills every queue, on a local cluster of its own.

A small run makes models, vectors, scorers and texts first. Its tasks are then sent again and again, with other outputs,
so that each service always has the next one waiting. Eight clients meanwhile ask one question after the other.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from common import REPOSITORY, Parser, write_report
from mixed.bulk import Bulk
from mixed.requests import BODIES, ask, warm

from poolbench.contracts.tasks import Task
from poolbench.errors import PoolbenchError
from poolbench.settings import PlaceSettings
from poolbench_driver.cluster.session import Session, open_session
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.job import prepare
from poolbench_driver.loop.progress import open_display
from poolbench_driver.records.folder import create_run

RUN: dict[str, Any] = {"preset": "demo", "concepts": ["contrast"], "strategies": ["A1_mean", "L1_pos_filtered"]}


@contextmanager
def cluster(state: Path) -> Iterator[None]:
    """Run a local cluster with this state folder."""
    os.environ[PlaceSettings.variable("state")] = str(state)
    command = [sys.executable, "-m", "deploy.local.cluster"]
    subprocess.run([*command, "up"], cwd=REPOSITORY, check=True)
    try:
        yield
    finally:
        subprocess.run([*command, "down"], cwd=REPOSITORY, check=True)


def tasks_of_a_run(session: Session, config: Path | None, folder: Path) -> list[Task]:
    """Do a small run; return its tasks. Raise PoolbenchError if one failed."""
    job = prepare(load_run_config(config, {} if config else RUN), session)
    if not job.run(create_run(folder, job.config), open_display("plain")).done:
        raise PoolbenchError(f"the run before the measurement failed; see {folder}")
    return list(job.plan.tasks.values())


def measure(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Return the figures of each verb, alone and beside the bulk run."""
    session = open_session()
    bulk = Bulk(session.queue, tasks_of_a_run(session, args.config, root / "runs"))
    http, token = session.settings.http_address, session.settings.token
    warm(http, token)
    figures: dict[str, Any] = {"alone": ask(http, token, args.seconds / 2)}
    with bulk.running():
        ask(http, token, args.seconds / 6)  # until every service is busy
        figures["beside_a_run"] = ask(http, token, args.seconds)
    return figures | {"tasks_sent": bulk.sent}


def main() -> None:
    """Measure and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="length of the measurement beside the bulk run")
    parser.add_argument("--scratch", type=Path, help="folder of the cluster's state; by default temporary")
    parser.add_argument("--config", type=Path, help="of the run that comes first; by default a small one")
    parser.add_argument("--running", action="store_true", help="use the local cluster that runs, not one of its own")
    args = parser.options(seconds=1)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch, ExitStack() as ending:
        if not args.running:
            ending.enter_context(cluster(Path(scratch) / "state"))
        figures = measure(args, Path(scratch))
    ratios: dict[str, float | None] = {}
    for verb in BODIES:
        alone, beside = figures["alone"][verb]["p95_s"], figures["beside_a_run"][verb]["p95_s"]
        ratios |= {
            f"adhoc.p95_s.{verb}": beside,
            f"adhoc.vs_alone.{verb}": beside / alone if beside and alone else None,
        }
    p95s = [latencies["p95_s"] for latencies in figures["beside_a_run"].values()]
    write_report("adhoc", args, ratios | {"adhoc.p95_s": None if None in p95s else max(p95s)}, figures)


if __name__ == "__main__":
    main()
