"""Ray on several machines: services by resource, a machine that dies, one that joins, and a head that dies."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.figures import Rows, assert_same
from tests.servers import machines as network
from tests.servers import nodes as cluster
from tests.servers import redis as redis_server
from tests.servers.nodes import HEAVY, LIGHT, LONG_S, Nodes
from tests.soak.faults import brokers
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not redis_server.available(), reason="needs the Debian package redis-server"),
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]


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
