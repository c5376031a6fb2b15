"""The S3 service of Docker Compose, really started: who may do what in it, and what a killed server keeps."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deploy.docker import keys
from tests.servers.seaweed import Seaweed, serve

from poolbench.contracts.wire import run_path
from poolbench.errors import AccessDeniedError
from poolbench.storage import Artifacts, require_conditional_writes
from poolbench.storage.s3 import S3Store

pytestmark = pytest.mark.lane(name="brokers")
URI = "s3://poolbench/some/prefix"
KEY, SENSITIVE = "prober.probe.1", "restricted.prober.probe.1"
TABLE = pa.table({"x": [1]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A server with the users that `up` makes, after its container `s3-setup` has run."""
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("POOLBENCH_")]:
            patch.delenv(name)
        patch.setenv("POOLBENCH_STATE", str(state))
        keys.prepare()
        with serve(tmp_path_factory.mktemp("seaweed"), keys.read("s3.json")) as running:
            set_up(running)
            yield running


def set_up(server: Seaweed) -> None:
    """Run what the container runs, twice: each `up` runs it."""
    environment = {
        **os.environ,
        "POOLBENCH_STORE": URI,
        "POOLBENCH_S3_ENDPOINT": server.endpoint,
        "POOLBENCH_S3_ACCESS_KEY": keys.read("s3_root_access"),
        "POOLBENCH_S3_SECRET_KEY": keys.read("s3_root_secret"),
    }
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "deploy.docker.s3_setup"], env=environment, check=True)


def store(server: Seaweed, user: str) -> S3Store:
    settings = server.user(keys.read(f"s3_{user}_access"), keys.read(f"s3_{user}_secret"))
    return S3Store(URI, settings, existing=True)


def artifacts(server: Seaweed, user: str) -> Artifacts:
    """Artifacts as a container with this user has them."""
    return Artifacts(store(server, user))


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(AccessDeniedError):
        call()


def test_driver_and_services_do_their_work(server: Seaweed) -> None:
    for user in ("driver", "services"):
        own = artifacts(server, user)
        require_conditional_writes(own.store)
        own.write_table(f"{KEY}.{user}", TABLE)
        own.write_table(f"{SENSITIVE}.{user}", TABLE)
        assert own.read_table(f"{SENSITIVE}.{user}") == TABLE
        assert not own.store.exists("cancelled/none"), "a missing object is missing, not forbidden"
    assert artifacts(server, "driver").read_table(f"{KEY}.services") == TABLE


def test_services_cannot_remove_what_is_committed_nor_touch_runs(server: Seaweed) -> None:
    services, driver = artifacts(server, "services"), artifacts(server, "driver")
    services.write_table(f"{KEY}.kept", TABLE)
    refused(lambda: services.delete(f"{KEY}.kept"))
    refused(lambda: services.store.put(run_path("a", "state.json"), b"{}"))
    driver.store.put(run_path("a", "state.json"), b"{}")
    assert driver.read_table(f"{KEY}.kept") == TABLE
    driver.delete(f"{KEY}.kept")
    assert not driver.exists(f"{KEY}.kept")


def test_a_wrong_key_opens_nothing(server: Seaweed) -> None:
    settings = server.user(keys.read("s3_driver_access"), "x" * 40)
    refused(lambda: S3Store(URI, settings, existing=True).get("artifacts/x"))


def test_a_killed_server_keeps_what_it_acknowledged(server: Seaweed, tmp_path: Path) -> None:
    """Data, users and the policy are there again."""
    own = store(server, "driver")
    written = {f"artifacts/kill/{number}": os.urandom(1000 + 997 * number) for number in range(60)}
    for path, content in written.items():
        assert own.put(path, content, if_absent=True)
    server.kill()
    server.start()
    again = store(server, "driver")
    assert {path: again.get(path) for path in written} == written
    assert again.put("artifacts/kill/0", b"other", if_absent=True) is False
    refused(lambda: store(server, "services").put(run_path("b", "state.json"), b"{}"))
