"""Speed of the object stores: small artifacts per second from one worker, and large objects, on S3 and in a folder.

`python bench/store.py` starts a Ceph gateway in `--scratch`, or uses the service that POOLBENCH_S3_* names; without
either its ratios are null. The two stores take turns. A small artifact is a table of 100 rows with its manifest,
committed as a task's outputs are.
"""

import argparse
import os
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import urllib3
from common import Clock, Parser, turns, write_report
from ratios import RATIOS

from poolbench.contracts.tasks import Task
from poolbench.settings import S3Settings
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectStore
from poolbench.storage.folder import FolderStore
from poolbench.storage.s3 import S3Store
from poolbench.storage.s3.clock import Connections
from poolbench.worker.taskio import TaskIO

SMALL = pa.table({"passage_id": [f"p{number:04d}" for number in range(100)], "score": [0.5] * 100})
BUCKET = "poolbench-bench"


def small_artifacts(store: ObjectStore, number: int) -> dict[str, float]:
    """Return artifacts per second, and CPU seconds of this process per artifact, of one task with many outputs."""
    run = uuid.uuid4().hex[:8]
    outputs = {f"table/{n}": f"bench.{run}.{n:05d}" for n in range(number)}
    io = TaskIO(Task(kind="prober.probe", inputs={}, outputs=outputs), Artifacts(store), {"service": "bench"})
    clock = Clock()
    io.write_tables(dict.fromkeys(outputs, SMALL))
    spent = clock.read()
    return {"per_s": number / spent.wall_s, "cpu_s_per_artifact": spent.cpu_s / number}


def one_after_the_other(store: ObjectStore, number: int) -> float:
    """Return artifacts per second if each commit waits for the one before."""
    artifacts, run = Artifacts(store), uuid.uuid4().hex[:8]
    began_s = time.perf_counter()
    for n in range(number):
        artifacts.write_table(f"bench.{run}.{n:05d}", SMALL)
    return number / (time.perf_counter() - began_s)


def large_object(store: ObjectStore, num_bytes: int) -> dict[str, float]:
    """Return MB per second of writing and of reading one object."""
    data, path = os.urandom(num_bytes), f"large/{uuid.uuid4().hex[:8]}"
    began_s = time.perf_counter()
    store.put(path, data)
    written_s = time.perf_counter()
    same = store.get(path) == data
    read_s = time.perf_counter()
    store.delete(path)
    assert same, f"{path} came back different"
    return {
        "put_mb_per_s": num_bytes / 1e6 / (written_s - began_s),
        "get_mb_per_s": num_bytes / 1e6 / (read_s - written_s),
    }


def requests_of_an_artifact(store: S3Store) -> dict[str, int]:
    """Return the requests that one artifact costs when it is committed and when it is read, by method."""
    artifacts, key = Artifacts(store), f"bench.{uuid.uuid4().hex[:8]}"
    with _counted() as written:
        artifacts.write_table(key, SMALL)
    with _counted() as read:
        artifacts.read_table(key)
    return {**{f"commit {method}": n for method, n in written.items()}, **{f"read {m}": n for m, n in read.items()}}


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    original = Connections.urlopen

    def counting(self: Connections, method: str, url: str, *args: Any, **options: Any) -> urllib3.BaseHTTPResponse:
        counts[method] += 1
        return original(self, method, url, *args, **options)

    Connections.urlopen = counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        Connections.urlopen = original  # type: ignore[method-assign]


@contextmanager
def _service(scratch: Path) -> Iterator[tuple[S3Settings | None, str]]:
    """Yield an S3 service and what it is, or None and why there is none."""
    if os.environ.get(S3Settings.variable("endpoint")):
        yield S3Settings.load(), "the service of POOLBENCH_S3_ENDPOINT"
        return
    from tests.servers import ceph

    if missing := ceph.missing():
        yield None, f"no S3 service: set POOLBENCH_S3_*, or install {', '.join(missing)} (tests/servers/s3.sh)"
        return
    with ceph.serve(scratch) as running:
        yield running.service, "Ceph RADOS gateway on this machine, with one storage daemon"


def measure(stores: dict[str, ObjectStore], args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each store: medians over rounds in which the stores take turns."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in stores}
    for name in turns(stores, args.rounds):
        store = stores[name]
        rounds[name].append(
            {
                **small_artifacts(store, args.artifacts),
                "one_after_the_other_per_s": one_after_the_other(store, max(1, args.artifacts // 4)),
                **large_object(store, args.large_mib << 20),
            }
        )
    return {
        name: {
            "rounds": store_rounds,
            "median": {figure: statistics.median(one[figure] for one in store_rounds) for figure in store_rounds[0]},
        }
        for name, store_rounds in rounds.items()
    }


def main() -> None:
    """Measure and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--artifacts", type=int, default=400, help="small artifacts per round")
    parser.add_argument("--large-mib", type=int, default=512, help="size of the large object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder of Ceph and of the folder store; by default temporary")
    args = parser.options(artifacts=20, large_mib=80, rounds=1)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch, _service(Path(scratch)) as (service, what):
        if service is None:
            print(what)
            write_report("store", args, dict.fromkeys(RATIOS["store"]), {"service": what})
            return
        s3 = S3Store(f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}", service)
        folder = FolderStore(Path(scratch, "folder"))
        small_artifacts(s3, 20)  # opens connections
        figures = measure({"s3": s3, "folder": folder}, args)
        figures |= {"requests": requests_of_an_artifact(s3), "service": what}
    small = figures["s3"]["median"]["per_s"]
    ratios = {
        "store.put_rate": small,
        "store.put_rate_vs_folder": small / figures["folder"]["median"]["per_s"],
        "store.requests_per_commit": float(sum(n for name, n in figures["requests"].items() if "commit" in name)),
        "store.put_mb_per_s": figures["s3"]["median"]["put_mb_per_s"],
        "store.get_mb_per_s": figures["s3"]["median"]["get_mb_per_s"],
    }
    write_report("store", args, ratios, figures)


if __name__ == "__main__":
    main()
