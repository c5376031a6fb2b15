"""Ray on several machines: services by resource, a machine that dies, one that joins, and a head that dies."""

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.figures import Rows, assert_same
from tests.servers import machines as network
from tests.servers import nodes as cluster
from tests.servers import redis as redis_server
from tests.servers import tutorial
from tests.servers.nodes import HEAVY, LIGHT, LONG_S, REPOSITORY, Nodes
from tests.trials.soak.faults import brokers
from tests.waiting import wait_until

from poolbench.contracts.wire import HEALTH_PATH, SERVICES

pytestmark = [
    pytest.mark.lane(name="nodes"),
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]

#: What processes give to everybody, by a part of their command lines.
GRANTED = {
    "ray::ProxyActor": {"GET /-/healthz: 200", *(f"GET /{name}{HEALTH_PATH}: 200" for name in SERVICES)},
    "ray::DashboardAgent": {"metrics", "GET /api/healthz: 200", "GET /api/local_raylet_healthz: 200"},
    "autoscaler/_private/monitor.py": {"metrics"},
    "dashboard/dashboard.py": {"metrics"},
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster.serve("spare") as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(nodes: Nodes) -> Rows:
    return nodes.run()


def disturbed(nodes: Nodes, after: str, disturb: Callable[[], None]) -> Rows:
    """Run from an empty store, and disturb the cluster once a service has committed its first artifact."""
    nodes.empty_store()
    done = threading.Event()

    def strike() -> None:
        wait_until(lambda: any(f"/{after}." in path for path in nodes.manifests()), LONG_S)
        disturb()
        done.set()

    thread = threading.Thread(target=strike)
    thread.start()
    found = nodes.run()
    thread.join()
    assert done.is_set()
    return found


def test_services_run_where_their_resource_is(nodes: Nodes) -> None:
    where = {name: set(nodes.replicas(name).values()) for name in nodes.machines}
    assert where == {"head": set(), "first": set(LIGHT), "second": set(HEAVY), "spare": set(), "desk": set()}


def test_one_sees_what_the_tutorial_shows(nodes: Nodes, undisturbed: Rows) -> None:
    """Its commands started the machines and the run; the cluster has one more worker, and the run is smaller."""
    assert undisturbed
    status = nodes.desk.call(tutorial.command("poolbench-driver status", {}), cwd=nodes.folder)
    assert status.returncode == 0, status.stderr

    def all_shown() -> bool:
        seen = [status.stdout, *((nodes.folder / log).read_text() for log in ("head.log", "driver.log"))]
        lines = {" ".join(line.split()) for text in seen for line in text.splitlines()}
        return {" ".join(line.split()) for line in tutorial.shown()} <= lines

    wait_until(all_shown)  # the head looks every few seconds


def test_a_stranger_on_the_network_gets_what_is_documented(nodes: Nodes, undisturbed: Rows) -> None:
    """After a run, so that the engine and every worker is there. docs/security.md names what he gets."""
    assert undisturbed
    ports = {port: line for machine in nodes.machines.values() for port, line in machine.ports().items()}
    stranger = nodes.machines["spare"]
    kept = {name: value for name, value in nodes.environment.items() if "TOKEN" not in name}
    asked = stranger.call([sys.executable, "-m", "tests.servers.stranger", *ports], env=kept, cwd=REPOSITORY)
    assert asked.returncode == 0, asked.stderr[-3000:]
    answers = json.loads(asked.stdout.splitlines()[-1])
    open_to = {line: set(granted) for port, line in ports.items() if (granted := answers[port][0])}
    beyond = {line: granted - GRANTED[kind] for line, granted in open_to.items() for kind in GRANTED if kind in line}
    assert not any(beyond.values()) and beyond.keys() == open_to.keys(), (beyond, open_to)
    silent = {line for port, line in ports.items() if answers[port] == [[], ["silent"]]}
    assert all("deploy.nodes.head" in line for line in silent), silent
    refused = Counter(way for _, ways in answers.values() for way in ways)
    # Ray starts more processes where there are more cores.
    assert refused["UNAUTHENTICATED"] >= 10 and refused["401"] >= 3 and refused["NOAUTH"] == 2, refused
    assert refused["closed"] <= len(ports) / 4, refused


def test_a_machine_dies_and_another_joins(nodes: Nodes, undisturbed: Rows) -> None:
    def replace() -> None:
        nodes.machines["second"].kill()
        nodes.start_worker("spare", HEAVY)

    assert_same(disturbed(nodes, "scorer", replace), undisturbed)
    assert set(nodes.replicas("spare").values()) == set(HEAVY)


def test_the_head_dies_and_comes_back(nodes: Nodes, undisturbed: Rows) -> None:
    """Workers keep their replicas, because Ray keeps the head's state in Redis."""

    def restart() -> None:
        nodes.machines["head"].kill()
        nodes.machines["head"].power_on()
        nodes.start_head()

    before = nodes.replicas("first")
    assert_same(disturbed(nodes, "extractor", restart), undisturbed)
    nodes.await_services()
    assert nodes.replicas("first") == before


def test_a_machine_with_another_token_of_ray_is_refused(nodes: Nodes) -> None:
    stranger = nodes.machines["desk"]
    command = [sys.executable, "-m", "deploy.nodes.worker", nodes.machines["head"].address, "prober"]
    done = stranger.call(command, env=nodes.environment | {"RAY_AUTH_TOKEN": "0" * 64})
    assert done.returncode == 2 and "refuses the token of Ray: set RAY_AUTH_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr and nodes.replicas("desk") == {}


def test_the_state_of_the_head_is_away(nodes: Nodes, undisturbed: Rows) -> None:
    """Ray's head ends without its Redis, and its program with it; a supervisor starts both again."""

    def restart() -> None:
        brokers.head_state_restarts(nodes, random.Random())
        wait_until(lambda: "Ray's head ended with" in (nodes.folder / "head.log").read_text(), LONG_S)

    before = nodes.replicas("first")
    assert_same(disturbed(nodes, "extractor", restart), undisturbed)
    nodes.await_services()
    assert nodes.replicas("first") == before


def test_a_folder_that_a_machine_does_not_share_is_refused(nodes: Nodes) -> None:
    nodes.machines["first"].kill()
    nodes.machines["first"].power_on()
    store = nodes.environment["POOLBENCH_STORE"]
    hidden = f'mount -t tmpfs none {store} && exec "$@"'
    nodes.start_worker("first", LIGHT, "unshare", "--mount", "sh", "-c", hidden, "sh")
    wait_until(lambda: f"POOLBENCH_STORE: {store} on " in (nodes.folder / "head.log").read_text(), LONG_S)
