"""A cluster on several machines: a head, workers, and a desk that has Redis and the driver."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.figures import Rows, rows_of
from tests.servers import machines as network
from tests.servers import redis as redis_server
from tests.servers.machines import Machine
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES
from poolbench.storage import ObjectInfo, open_store
from poolbench.storage.base import ObjectStore

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = str(Path(sys.executable).with_name("poolbench-driver"))
LONG_S = 1200.0  # a guard against hanging
LIGHT, HEAVY = ("extractor", "pooler", "prober"), ("scorer", "steerer")
BROKER_PORT, RAY_STATE_PORT = 6379, 6390
#: The demo with fewer and shorter texts; every kind of task is in it.
SMALL = {
    "preset": "demo",
    "concepts": ["contrast"],
    "strategies": ["A1_mean", "L5_keyword"],
    "layers": [2, 4],
    "budget": {
        "name": "nodes",
        "num_train": 60,
        "num_test": 30,
        "num_scorer": 80,
        "strengths": [0.5],
        "null_strengths": [0.5],
        "reference_strength": 0.5,
        "num_openings": 4,
        "max_tokens": 8,
        "num_continuations": 20,
        "num_bootstrap": 50,
    },
}


@dataclass(frozen=True)
class Nodes:
    """A running cluster of several machines."""

    machines: dict[str, Machine]
    folder: Path
    environment: dict[str, str]
    head_program: str = "deploy.nodes.head"

    @property
    def store(self) -> ObjectStore:
        """The object store, a folder that the machines share."""
        return open_store(self.environment["POOLBENCH_STORE"])

    @property
    def desk(self) -> Machine:
        """The machine of Redis and the driver."""
        return self.machines["desk"]

    def start_redis(self, port: int) -> None:
        """Start one of two Redis servers: the broker, or the one with the state of Ray's head. Both write a log."""
        place = self.folder / f"redis-{port}"
        place.mkdir(exist_ok=True)
        command = redis_server.command(place, self.desk.address, port, {"appendonly": "yes"})
        self.desk.start(command, self.folder / f"redis-{port}.log")

    def start_head(self) -> None:
        """Start the head, whose state Ray keeps in Redis."""
        state = {
            "RAY_REDIS_ADDRESS": f"{self.desk.address}:{RAY_STATE_PORT}",
            "RAY_REDIS_PASSWORD": redis_server.PASSWORD,
            "RAY_external_storage_namespace": "nodes",
        }
        # Machines see one another's processes here: Ray would take a worker's for the head that this file names.
        (self.folder / "ray" / "ray_current_cluster").unlink(missing_ok=True)
        head = self.machines["head"]
        command = [sys.executable, "-m", self.head_program, "--address", head.address]
        head.start(command, self.folder / "head.log", **state)

    def start_worker(self, name: str, services: tuple[str, ...], *before: str) -> None:
        """Start a worker; `before` is a command that starts it in turn."""
        machine = self.machines[name]
        command = [sys.executable, "-m", "deploy.nodes.worker", self.machines["head"].address, *services]
        machine.start([*before, *command, "--address", machine.address], self.folder / f"{name}.log")

    def replicas(self, name: str) -> dict[int, str]:
        """Return the service of every replica of a machine by process."""
        named = {number: line.split(":") for number, line in self.machines[name].processes().items()}
        return {number: parts[3] for number, parts in named.items() if parts[:3] == ["ray", "", "ServeReplica"]}

    def answering(self, after_s: float = 0.0) -> set[str]:
        """Return the services that answered the last request for their health, if it was sent after a time."""
        try:
            asked_at, found = json.loads((self.folder / "health.json").read_text())
        except FileNotFoundError:
            return set()
        return set(found) if asked_at > after_s else set()

    def await_services(self) -> None:
        """Wait until every service answers over HTTP."""
        wait_until(lambda: self.answering() == set(SERVICES), LONG_S)

    def manifests(self) -> dict[str, ObjectInfo]:
        """Return the manifests of all committed artifacts by path."""
        return {info.path: info for info in self.store.list("artifacts/") if info.path.endswith("manifest.json")}

    def empty_store(self) -> None:
        """Delete all artifacts."""
        for info in list(self.store.list("artifacts/")):
            self.store.delete(info.path)

    def command(self) -> list[str]:
        """Return the command of the small run."""
        config = self.folder / "small.yaml"
        config.write_text(yaml.safe_dump(SMALL))
        return [DRIVER, "run", str(config), "--output", str(self.folder / "runs"), "--display", "plain"]

    def rows(self) -> Rows:
        """Return the results of the latest run."""
        return rows_of(self.folder / "runs" / "latest")

    def run(self) -> Rows:
        """Run the main job from the desk; return the rows of its results by cell."""
        done = self.desk.call(self.command(), timeout=LONG_S)
        assert done.returncode == 0, done.stderr[-3000:]
        return self.rows()


def _mount(stack: ExitStack, place: Path, num_bytes: int) -> None:
    place.mkdir()
    options = f"size={num_bytes},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "poolbench-store", str(place)], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=False)


@contextmanager
def serve(
    *spare: str, store_bytes: int = 0, head_program: str = Nodes.head_program, **variables: str
) -> Iterator[Nodes]:
    """Yield a cluster of a head and the workers `first` and `second`.

    Args:
        spare: Names of machines where nothing runs.
        store_bytes: Size of a file system for the store alone, which a test can fill or make read-only; 0 for none.
        head_program: Module that the head runs.
        variables: Further variables of the environment of every machine.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="pb"))  # a short path: it holds Ray's Unix sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if store_bytes:  # before any machine starts: each sees the mounts of its start
            _mount(stack, folder / "store", store_bytes)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
        environment |= {
            "TMPDIR": str(folder),
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "POOLBENCH_TOKEN": secrets.token_hex(32),
            "POOLBENCH_STATE": str(folder / "state"),
            "POOLBENCH_STORE": str(folder / "store"),
            "POOLBENCH_SHARED_MACHINE": "1",
            "PYTHONPATH": str(REPOSITORY),
            **variables,
        }
        found = stack.enter_context(network.machines(("head", "first", "second", "desk", *spare), environment))
        nodes = Nodes(found, folder, environment, head_program)
        broker = f"redis://:{redis_server.PASSWORD}@{nodes.desk.address}:{BROKER_PORT}/0"
        environment["POOLBENCH_BROKER"] = broker
        environment["POOLBENCH_HTTP"] = f"http://{found['head'].address}:8000"
        for port in (BROKER_PORT, RAY_STATE_PORT):
            nodes.start_redis(port)
        watch = [sys.executable, "-m", "tests.servers.watch", str(folder / "health.json")]
        nodes.desk.start(watch, folder / "watch.log")
        nodes.start_head()
        nodes.start_worker("first", LIGHT)
        nodes.start_worker("second", HEAVY)
        nodes.await_services()
        yield nodes
