"""What is wrong with a cluster is said when a run starts: one line, an exit code, and nothing half-written."""

import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.servers import redis as redis_server
from tests.servers.quiet import TasksOnly
from tests.servers.services import cluster_environment, serving

from poolbench.contracts.wire import SERVICES
from poolbench.machine import about
from poolbench.queue import Broker
from poolbench.queue.broker import FILE, KEY, Owner, require_owner
from poolbench.settings import S3Settings
from poolbench.storage import store_id
from poolbench.storage.folder import FolderStore
from poolbench.storage.s3 import S3Store
from poolbench_driver.cli import main
from poolbench_driver.cluster.session import open_session
from poolbench_driver.doctor.finding import check_session

OTHER = Owner(store_id="0" * 32, store_uri="s3://of-another-cluster/x")


class Idle(TasksOnly):
    """A service without verbs, in the real HTTP application of a service."""

    def __init__(self, name: str) -> None:
        self.name, self.handlers = name, dict[str, Any]()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving({name: Idle(name) for name in SERVICES}) as found:
        yield found


class Operator:
    """Someone who starts a run with some settings, on a cluster that is fit apart from them."""

    def __init__(
        self, address: str, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self._patch, self._capsys = folder, patch, capsys
        for name in [name for name in os.environ if name.startswith("POOLBENCH_")]:
            patch.delenv(name)
        self.set(cluster_environment(address, folder))

    def set(self, environment: Mapping[str, str]) -> None:
        for name, value in environment.items():
            self._patch.setenv(name, value)

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code and output of a command."""
        self._patch.setattr("sys.argv", ["poolbench-driver", *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self._capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    def refused(self, code: int, *said: str) -> None:
        """Check that a run ends at once with this exit code and one line, and leaves nothing behind."""
        runs = self.folder / "runs"
        found, out, err = self.call("run", "--preset", "demo", "--output", str(runs))
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert found == code and len(lines) == 1 and "Traceback" not in out + err, err
        assert all(part in lines[0] for part in said), lines[0]
        assert not any(secret in out + err for secret in (redis_server.PASSWORD, "testsecret123", "wrong-secret"))
        assert not runs.exists()
        left = [info.path for info in FolderStore(self.folder / "store").list()]
        assert [path for path in left if not path.startswith(("health/", "folder-id"))] == []


@pytest.fixture
def operator(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Operator:
    return Operator(address, tmp_path, monkeypatch, capsys)


def s3_settings(service: S3Settings, **changes: str) -> dict[str, str]:
    """The environment of an S3 store."""
    values = {
        "ENDPOINT": service.endpoint,
        "ACCESS_KEY": service.access_key.get_secret_value(),
        "SECRET_KEY": service.secret_key.get_secret_value(),
        "DEADLINE_S": "2",
    }
    return {f"POOLBENCH_S3_{name}": value for name, value in (values | changes).items()}


def s3_uri() -> str:
    return f"s3://poolbench-test/{uuid.uuid4().hex[:8]}"


@pytest.mark.lane(name="brokers")
@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"SECRET_KEY": "wrong-secret"}, 1, "the credentials are refused"),
        ({"SECRET_KEY": ""}, 2, "POOLBENCH_S3_SECRET_KEY"),
        ({"ENDPOINT": ""}, 2, "set POOLBENCH_S3_ENDPOINT"),
        ({"ENDPOINT": "http://127.0.0.1:9"}, 1, "no answer"),
        ({"REGION": "eu-nowhere-9"}, 2, "set POOLBENCH_S3_REGION to the region of the bucket"),
    ],
)
def test_s3_settings(operator: Operator, s3_service: S3Settings, changes: dict[str, str], code: int, said: str) -> None:
    # A gateway of Ceph has no buckets of other regions. It refuses to create one in a region that it does not know.
    uri = f"s3://poolbench-test-{uuid.uuid4().hex[:8]}" if "REGION" in changes else s3_uri()
    operator.set(s3_settings(s3_service, **changes) | {"POOLBENCH_STORE": uri})
    operator.refused(code, f"object store {uri}", said)


@pytest.mark.lane(name="brokers")
def test_an_s3_store_has_an_id_of_its_own(s3_service: S3Settings) -> None:
    first, second = (S3Store(s3_uri(), s3_service) for _ in range(2))
    assert store_id(first) == store_id(first) != store_id(second)


needs_redis = [
    pytest.mark.lane(name="brokers"),
    pytest.mark.skipif(not redis_server.available(), reason="needs redis-server"),
]


@pytest.mark.parametrize(
    ("options", "change", "code", "said"),
    [
        pytest.param({}, ("test-password", "wrong-secret"), 1, "refuses the password", marks=needs_redis),
        pytest.param({}, (":test-password@", ""), 1, "requires a password", marks=needs_redis),
        pytest.param({}, ("/0", "/99"), 1, "has no database of this number", marks=needs_redis),
        pytest.param({"rename-command": "LPOS "}, ("", ""), 2, "use Redis 6.2 or later, or Valkey", marks=needs_redis),
        pytest.param({"replicaof": "127.0.0.1 9"}, ("", ""), 1, "is a read-only replica", marks=needs_redis),
        pytest.param(None, ("", ""), 1, "correct POOLBENCH_BROKER", marks=()),
    ],
)
def test_brokers(
    operator: Operator, address: str, options: dict[str, str] | None, change: tuple[str, str], code: int, said: str
) -> None:
    if options is None:  # the port of an HTTP server
        operator.set({"POOLBENCH_BROKER": f"redis://{address.removeprefix('http://')}/0"})
        operator.refused(code, "the broker redis://", said)
        return
    with redis_server.serve(operator.folder, options=options) as url:
        operator.set({"POOLBENCH_BROKER": url.replace(*change)})
        operator.refused(code, "the broker redis://127.0.0.1", said)


@pytest.mark.parametrize("kind", redis_server.BROKERS)
def test_a_broker_of_another_cluster(operator: Operator, kind: str) -> None:
    with redis_server.broker(kind, operator.folder) as url:
        operator.set({"POOLBENCH_BROKER": url})
        require_owner(Broker(url), OTHER)
        place = f"the file {operator.folder / 'queue' / FILE}" if kind == "folder" else f"the Redis key {KEY}"
        operator.refused(2, "belongs to the cluster with the store s3://of-another-cluster/x", f"remove {place}")
        if kind == "folder":
            (operator.folder / "queue" / FILE).write_bytes(b"{}")
        else:
            Broker(url).redis_client().set(KEY, b"{}")
        operator.refused(2, f"{place} of the broker", "names no store: remove it")
        if kind == "folder":
            (operator.folder / "queue" / FILE).unlink()
        else:
            Broker(url).redis_client().delete(KEY)
        assert check_session(open_session()) == []


def test_two_clusters_on_one_store_and_broker_are_one(operator: Operator) -> None:
    """They have one owner; drivers and workers of both share all work."""
    assert check_session(open_session()) == []
    operator.set({"POOLBENCH_STATE": str(operator.folder / "another")})
    assert check_session(open_session()) == []


def test_services_of_another_version(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "steps_version", lambda: "another")
    operator.refused(2, "the extractor has version", "with steps another", "install the same version everywhere")


def test_a_wrong_token(operator: Operator) -> None:
    operator.set({"POOLBENCH_TOKEN": "wrong-secret"})
    operator.refused(1, "refused the token; POOLBENCH_TOKEN differs from the cluster's")
