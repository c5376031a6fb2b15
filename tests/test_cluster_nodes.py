"""Ray on several machines: services by resource, a machine that dies, one that joins, and a head that dies."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from tests.servers import machines as network
from tests.servers import redis as redis_server
from tests.servers.machines import Machine
from tests.waiting import wait_until

from poolbench.storage import open_store

REPOSITORY = Path(__file__).resolve().parents[1]
DRIVER = str(Path(sys.executable).with_name("poolbench-driver"))
LONG_S = 1200  # a guard against hanging
MACHINES = ("head", "first", "second", "spare", "desk")  # the desk has Redis and the driver
LIGHT, HEAVY = ("extractor", "pooler", "prober"), ("scorer", "steerer")
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

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]


@dataclass(frozen=True)
class Nodes:
    """A cluster of this test module, and the driver's machine beside it."""

    machines: dict[str, Machine]
    folder: Path
    environment: dict[str, str]

    def start_head(self) -> None:
        """Start the head, whose state Ray keeps in Redis."""
        address = self.machines["head"].address
        state = {
            "RAY_REDIS_ADDRESS": f"{self.machines['desk'].address}:6379",
            "RAY_REDIS_PASSWORD": redis_server.PASSWORD,
            "RAY_external_storage_namespace": "nodes",
        }
        command = [sys.executable, "-m", "deploy.nodes.head", "--address", address]
        self.machines["head"].start(command, self.folder / "head.log", **state)

    def start_worker(self, name: str, services: tuple[str, ...], *before: str) -> None:
        """Start a worker; `before` is a command that starts it in turn."""
        machine = self.machines[name]
        command = [sys.executable, "-m", "deploy.nodes.worker", self.machines["head"].address, *services]
        machine.start([*before, *command, "--address", machine.address], self.folder / f"{name}.log")

    def where(self) -> dict[str, set[str]]:
        """Return the services that have a replica, by machine."""
        return {name: set(_replicas(machine).values()) for name, machine in self.machines.items()}

    def await_services(self) -> None:
        """Wait until every service answers over HTTP."""
        code = "from deploy.local.apps import unhealthy; import sys; sys.exit(bool(unhealthy(*sys.argv[1:3])))"
        command = [sys.executable, "-c", code, self.environment["POOLBENCH_HTTP"], self.environment["POOLBENCH_TOKEN"]]
        wait_until(lambda: self.machines["desk"].call(command).returncode == 0, LONG_S)

    def run(self) -> dict[str, dict[str, Any]]:
        """Run the main job from the desk; return the rows of its results by cell."""
        config, output = self.folder / "small.yaml", self.folder / "runs"
        config.write_text(yaml.safe_dump(SMALL))
        command = [DRIVER, "run", str(config), "--output", str(output), "--display", "plain"]
        done = self.machines["desk"].call(command, timeout=LONG_S)
        assert done.returncode == 0, done.stderr[-3000:]
        return {row["cell_id"]: row for row in pq.read_table(output / "latest" / "results.parquet").to_pylist()}

    def disturbed(self, after: str, disturb: Callable[[], None]) -> dict[str, dict[str, Any]]:
        """Run from an empty store, and disturb the cluster once a service has committed its first artifact."""
        store = open_store(self.environment["POOLBENCH_STORE"])
        for info in list(store.list("artifacts/")):
            store.delete(info.path)
        done = threading.Event()

        def strike() -> None:
            wait_until(lambda: any(store.list(f"artifacts/{after}.")), LONG_S)
            disturb()
            done.set()

        thread = threading.Thread(target=strike)
        thread.start()
        found = self.run()
        thread.join()
        assert done.is_set()
        return found


def _replicas(machine: Machine) -> dict[int, str]:
    """Return the service of every replica by process."""
    named = {number: line.split(":") for number, line in machine.processes().items()}
    return {number: parts[3] for number, parts in named.items() if parts[:3] == ["ray", "", "ServeReplica"]}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="pb"))  # a short path: it holds Ray's Unix sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
        environment |= {
            "TMPDIR": str(folder),
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "POOLBENCH_TOKEN": secrets.token_hex(32),
            "POOLBENCH_STATE": str(folder / "state"),
            "POOLBENCH_STORE": str(folder / "store"),
            "POOLBENCH_SHARED_MACHINE": "1",
            "PYTHONPATH": str(REPOSITORY),
        }
        found = stack.enter_context(network.machines(MACHINES, environment))
        redis = found["desk"].address
        environment["POOLBENCH_BROKER"] = f"redis://:{redis_server.PASSWORD}@{redis}:6379/1"
        environment["POOLBENCH_HTTP"] = f"http://{found['head'].address}:8000"
        found["desk"].start(redis_server.command(folder, redis, 6379), folder / "redis.log")
        made = Nodes(found, folder, environment)
        made.start_head()
        made.start_worker("first", LIGHT)
        made.start_worker("second", HEAVY)
        made.await_services()
        yield made


@pytest.fixture(scope="module")
def undisturbed(nodes: Nodes) -> dict[str, dict[str, Any]]:
    return nodes.run()


def test_services_run_where_their_resource_is(nodes: Nodes) -> None:
    expected = {"head": set(), "first": set(LIGHT), "second": set(HEAVY), "spare": set(), "desk": set()}
    assert nodes.where() == expected


def test_a_machine_dies_and_another_joins(nodes: Nodes, undisturbed: dict[str, dict[str, Any]]) -> None:
    def replace() -> None:
        nodes.machines["second"].kill()
        nodes.start_worker("spare", HEAVY)

    assert nodes.disturbed("scorer", replace) == undisturbed
    assert nodes.where()["spare"] == set(HEAVY)


def test_the_head_dies_and_comes_back(nodes: Nodes, undisturbed: dict[str, dict[str, Any]]) -> None:
    """Workers keep their replicas, because Ray keeps the head's state in Redis."""

    def restart() -> None:
        nodes.machines["head"].kill()
        nodes.machines["head"].power_on()
        nodes.start_head()

    before = _replicas(nodes.machines["first"])
    assert nodes.disturbed("extractor", restart) == undisturbed
    nodes.await_services()
    assert _replicas(nodes.machines["first"]) == before


def test_a_folder_that_a_machine_does_not_share_is_refused(nodes: Nodes) -> None:
    nodes.machines["first"].kill()
    nodes.machines["first"].power_on()
    hidden = f'mount -t tmpfs none {nodes.environment["POOLBENCH_STORE"]} && exec "$@"'
    nodes.start_worker("first", LIGHT, "unshare", "--mount", "sh", "-c", hidden, "sh")
    message = f"POOLBENCH_STORE: {nodes.environment['POOLBENCH_STORE']} on "
    wait_until(lambda: message in (nodes.folder / "head.log").read_text(), LONG_S)
