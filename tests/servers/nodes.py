"""A cluster on several machines: a head, workers, and a desk that has Redis, the S3 service and the driver."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import httpx
from redis import Redis
from tests.figures import Rows, rows_of
from tests.servers import clocks, gateway, small_run, tutorial
from tests.servers import machines as network
from tests.servers import redis as redis_server
from tests.servers.clocks import Clock
from tests.servers.gateway import Gateway
from tests.servers.machines import Machine
from tests.waiting import wait_until

from poolbench.contracts.wire import HEALTH_PATH, SERVICES, bearer
from poolbench.storage import ObjectInfo, open_store
from poolbench.storage.base import ObjectStore

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[2]
LONG_S = 1200.0  # a guard against hanging
LIGHT, HEAVY = ("extractor", "pooler", "prober"), ("scorer", "steerer")
BROKER_PORT, RAY_STATE_PORT = 6379, 6390
BROKER_FOLDER = f"redis-{BROKER_PORT}"
_HEALTH_TIMEOUT_S = 10.0
_POLL_S = 0.5
#: Starts a program again when it ends, as `restart: unless-stopped` does in Docker Compose.
_SUPERVISED = ("sh", "-c", 'while :; do "$@"; sleep 1; done', "sh")


@dataclass(frozen=True)
class Nodes:
    """A running cluster of several machines.

    Attributes:
        machines: All machines by name.
        folder: What they share.
        environment: The environment of their processes.
        threads: Threads of this process that are on the desk.
        clocks: The wall clocks of the Python processes of workers and driver.
        gateway: The S3 service, if the store is not a folder.
    """

    machines: dict[str, Machine]
    folder: Path
    environment: dict[str, str]
    threads: ThreadPoolExecutor
    clocks: dict[str, Clock]
    gateway: Gateway | None = None

    @property
    def desk(self) -> Machine:
        """The machine of Redis, the S3 service and the driver."""
        return self.machines["desk"]

    def inside(self, work: Callable[[], T]) -> T:
        """Call a function in a thread that is on the desk."""
        return self.threads.submit(work).result()

    def start_redis(self, port: int) -> None:
        """Start one of two Redis servers: the broker, or the one with the state of Ray's head. Both write a log."""
        place = self.folder / f"redis-{port}"
        place.mkdir(exist_ok=True)
        command = redis_server.command(place, self.desk.address, port, {"appendonly": "yes"})
        self.desk.start(command, self.folder / f"redis-{port}.log")

    def broker(self) -> Redis:
        """Return a client of the broker, for threads on the desk."""
        return Redis(self.desk.address, BROKER_PORT, password=redis_server.PASSWORD)

    def start_head(self) -> None:
        """Start the head, whose state Ray keeps in Redis."""
        state = {
            "RAY_REDIS_ADDRESS": f"{self.desk.address}:{RAY_STATE_PORT}",
            "RAY_REDIS_PASSWORD": redis_server.PASSWORD,
            "RAY_external_storage_namespace": "nodes",
        }
        head = self.machines["head"]
        # Machines see one another's processes here: Ray would take a worker's for the head that this file names.
        forgotten = ["sh", "-c", f'rm -f {self.folder}/ray/ray_current_cluster; exec "$@"', "sh"]
        command = tutorial.command("deploy.nodes.head", {tutorial.HEAD: head.address})
        head.start([*_SUPERVISED, *forgotten, *command], self.folder / "head.log", **state)

    def start_worker(self, name: str, services: tuple[str, ...], *before: str) -> None:
        """Start a worker of some of the tutorial's services; `before` is a command that starts it in turn."""
        machine = self.machines[name]
        addresses = {tutorial.HEAD: self.machines["head"].address, tutorial.WORKER: machine.address}
        command = tutorial.command("deploy.nodes.worker", addresses)
        command = [word for word in command if word not in SERVICES or word in services]
        machine.start([*_SUPERVISED, *before, *command], self.folder / f"{name}.log", **self.clocks[name].environment)

    def replicas(self, name: str) -> dict[int, str]:
        """Return the service of every replica of a machine by process. The console's runs where Ray puts it."""
        named = {number: line.split(":") for number, line in self.machines[name].processes().items()}
        replicas = {number: parts[3] for number, parts in named.items() if parts[:3] == ["ray", "", "ServeReplica"]}
        return {number: service for number, service in replicas.items() if service in SERVICES}

    def answering(self) -> set[str]:
        """Ask all services for their health; return those that answer."""

        def answers(name: str) -> bool:
            address = f"{self.environment['POOLBENCH_HTTP']}/{name}{HEALTH_PATH}"
            try:  # with a connection of its own: an old one may lead to a machine that is no more
                # Without TLS nothing is verified; to load the certificates of authorities would take 20 ms.
                return httpx.get(address, headers=headers, timeout=_HEALTH_TIMEOUT_S, verify=False).is_success
            except httpx.HTTPError:
                return False

        headers = bearer(self.environment["POOLBENCH_TOKEN"])
        return {name for name, up in zip(SERVICES, self.threads.map(answers, SERVICES), strict=True) if up}

    def await_services(self) -> None:
        """Wait until every service answers over HTTP."""
        wait_until(lambda: self.answering() == set(SERVICES), LONG_S, _POLL_S)

    def store(self) -> ObjectStore:
        """Return the object store, for threads on the desk."""
        return self.gateway.store if self.gateway else open_store(self.environment["POOLBENCH_STORE"])

    def manifests(self) -> dict[str, ObjectInfo]:
        """Return the manifests of all committed artifacts by path."""
        listed = self.inside(lambda: list(self.store().list("artifacts/")))
        return {info.path: info for info in listed if info.path.endswith("manifest.json")}

    def empty_store(self) -> None:
        """Delete all artifacts."""

        def empty() -> None:
            store = self.store()
            for info in list(store.list("artifacts/")):
                store.delete(info.path)

        self.inside(empty)

    def ends_of_logs(self) -> str:
        """Return the last lines of the logs of all parts."""
        logs = {log.name: log.read_text(errors="replace").splitlines()[-15:] for log in self.folder.glob("*.log")}
        return "\n".join("\n".join((f"--- {name}", *lines)) for name, lines in sorted(logs.items()))

    def command(self) -> list[str]:
        """Return the command of the small run."""
        return small_run.command(self.folder / "small.yaml", self.folder / "runs")

    def start_driver(self, log: Path) -> subprocess.Popen[bytes]:
        """Start the small run on the desk."""
        return self.desk.start(self.command(), log, **self.clocks["desk"].environment)

    def rows(self) -> Rows:
        """Return the results of the latest run."""
        return rows_of(self.folder / "runs" / "latest")

    def run(self) -> Rows:
        """Run the main job from the desk; return the rows of its results by cell."""
        done = self.desk.call(self.command(), timeout=LONG_S)
        (self.folder / "driver.log").write_text(done.stderr + done.stdout)
        assert done.returncode == 0, done.stderr[-3000:]
        return self.rows()


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
    return kept | {
        "TMPDIR": str(folder),
        "POOLBENCH_STATE": str(folder / "state"),
        "POOLBENCH_SHARED_MACHINE": "1",
        "PYTHONPATH": str(REPOSITORY),
    }


@contextmanager
def serve(
    *spare: str,
    s3: bool = False,
    disks: Mapping[str, int] = MappingProxyType({}),
    **variables: str,
) -> Iterator[Nodes]:
    """Yield a cluster of a head and the workers `first` and `second`.

    Args:
        spare: Names of machines where nothing runs.
        s3: Whether the store is an S3 service of the desk instead of a shared folder.
        disks: Sizes of file systems in bytes, by the name of their folder below `Nodes.folder`. A test can fill each,
            or make it read-only.
        variables: Further variables of the environment of every machine.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="pb"))  # a short path: it holds Ray's Unix sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name, num_bytes in disks.items():  # before any machine starts: each sees the mounts of its start
            stack.enter_context(network.disk(folder / name, num_bytes))
        environment = _environment(folder)
        found = stack.enter_context(network.machines(("head", "first", "second", "desk", *spare), environment))
        desk = found["desk"]
        places = {tutorial.HEAD: found["head"].address, tutorial.BROKER: f"{desk.address}:{BROKER_PORT}"}
        password = {tutorial.PASSWORD: f"PASSWORD={redis_server.PASSWORD}"}
        environment |= tutorial.environment(places | password | {tutorial.SHARED: str(folder)}) | variables
        threads = stack.enter_context(desk.threads(2 * len(SERVICES)))
        service = None
        if s3:
            (folder / "ceph").mkdir()
            service = stack.enter_context(gateway.serve(desk, folder / "ceph"))
            environment |= service.environment
        library = clocks.build(folder)
        right = {name: clocks.clock(library, folder / f"clock-{name}") for name in found}
        nodes = Nodes(found, folder, environment, threads, right, service)
        _start(nodes)
        yield nodes


def _start(nodes: Nodes) -> None:
    """Start Redis and Ray's nodes, and wait for the services."""
    for port in (BROKER_PORT, RAY_STATE_PORT):
        nodes.start_redis(port)
    nodes.start_head()
    if nodes.gateway:
        nodes.gateway.started.result()
    nodes.start_worker("first", LIGHT)
    nodes.start_worker("second", HEAVY)
    try:
        nodes.await_services()
    except BaseException:
        print(nodes.ends_of_logs(), file=sys.stderr)
        raise
