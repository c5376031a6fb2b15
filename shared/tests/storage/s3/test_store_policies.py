"""The policies of deploy/s3 on a real S3 service: each role does its work, and what it does not need is refused."""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from deploy.s3.policies import ROLES, bucket_policy
from pydantic import SecretStr
from tests.servers.ceph import Ceph

from poolbench.contracts.wire import CONCEPTS_FOLDER, failure_path, progress_path, run_path, scorers_path
from poolbench.errors import AccessDeniedError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage import Artifacts, require_conditional_writes
from poolbench.storage.damage import set_object_aside
from poolbench.storage.s3 import S3Store
from poolbench.storage.s3.client import Client

pytestmark = pytest.mark.lane(name="brokers")
KEY, SENSITIVE = "prober.probe.1", "restricted.prober.probe.1"
TABLE = pa.table({"x": [1]})


@dataclass(frozen=True)
class Bucket:
    """A bucket with the policies of all roles, and a store for each of them."""

    owner: S3Store
    stores: dict[str, S3Store]

    def of(self, role: str) -> Artifacts:
        """Artifacts as a process with these credentials has them."""
        return Artifacts(self.stores[role])


@pytest.fixture(scope="module")
def bucket(ceph: Ceph | None) -> Iterator[Bucket]:
    if ceph is None:
        pytest.skip("the users and policies of a service outside of the tests are its operator's")
    name = f"poolbench-test-policies-{uuid.uuid4().hex[:8]}"
    uri = f"s3://{name}/some/prefix"
    owner = S3Store(uri, ceph.service)
    services = {role: _user(ceph, role) for role in ROLES}
    principals = {role: f"arn:aws:iam:::user/{role}" for role in ROLES}
    Client.of(ceph.service).set_bucket_policy(name, json.dumps(bucket_policy(principals, uri)))
    yield Bucket(owner, {role: S3Store(uri, service, existing=True) for role, service in services.items()})


def _user(ceph: Ceph, role: str) -> S3Settings:
    access, secret = f"key-{role}", uuid.uuid4().hex
    ceph.add_user(role, access, secret)
    return ceph.service.model_copy(update={"access_key": SecretStr(access), "secret_key": SecretStr(secret)})


#: The definition of a concept of a user.
OWN = f"{CONCEPTS_FOLDER}/mine/concept.json"


def refused(call: Callable[[], object]) -> None:
    """Check that the service refuses a request, and that the store says so."""
    with pytest.raises(AccessDeniedError):
        call()


def test_a_driver_does_its_work(bucket: Bucket) -> None:
    driver = bucket.of("driver")
    require_conditional_writes(driver.store)
    driver.write_table(f"{KEY}.driver", TABLE)
    driver.write_table(f"{SENSITIVE}.driver", TABLE)
    assert driver.read_table(f"{SENSITIVE}.driver") == TABLE
    for path in (run_path("a", "state.json"), "cancelled/x", f"{scorers_path('contrast')}b.json", "doctor/x", OWN):
        driver.store.put(path, b"{}")
        assert driver.store.get(path) == b"{}"
        driver.store.delete(path)
    assert set_object_aside(driver.store, f"artifacts/{KEY}.driver").startswith("damaged/")
    assert not driver.exists(f"{KEY}.driver")
    large = S3Store(bucket.owner.uri, bucket.stores["driver"]._service, existing=True, part_bytes=5 << 20)
    large.put("artifacts/large", bytes(11 << 20))
    large.delete("artifacts/large")


def test_services_do_their_work_and_cannot_remove_what_is_committed(bucket: Bucket) -> None:
    services = bucket.of("services")
    require_conditional_writes(services.store)
    services.write_table(KEY, TABLE)
    again = services.writer(KEY)
    again.put("table.arrow", b"x")
    assert not again.commit(), "the second attempt is discarded"
    assert services.read_table(KEY) == TABLE
    for path in (failure_path("t"), progress_path("t")):
        services.store.put(path, b"{}")
        services.store.delete(path)
    services.store.put(f"{scorers_path('contrast')}minilm.json", b"{}")
    services.write_table(SENSITIVE, TABLE)
    assert services.read_table(SENSITIVE) == TABLE
    assert not services.store.exists("cancelled/none"), "a missing object is missing, not forbidden"
    refused(lambda: services.delete(KEY))
    assert bucket.of("driver").read_table(KEY) == TABLE
    bucket.owner.put(OWN, b"{}")
    assert services.store.get(OWN) == b"{}"
    for path in (run_path("a", "state.json"), "cancelled/x", "damaged/x", "activations/x.json", "elsewhere/x", OWN):
        refused(lambda path=path: services.store.put(path, b"{}"))
    bucket.owner.put(run_path("a", "state.json"), b"{}")
    refused(lambda: services.store.get(run_path("a", "state.json")))


def test_a_reader_changes_nothing(bucket: Bucket) -> None:
    bucket.of("driver").write_table(f"{KEY}.read", TABLE)
    bucket.owner.put(run_path("b", "state.json"), b"{}")
    reader = bucket.of("reader")
    assert reader.read_table(f"{KEY}.read") == TABLE
    assert reader.store.get(run_path("b", "state.json")) == b"{}"
    assert [info.path for info in reader.store.list("runs/b/")] == [run_path("b", "state.json")]
    refused(lambda: reader.write_table(f"{KEY}.new", TABLE))
    refused(lambda: reader.delete(f"{KEY}.read"))
    refused(lambda: reader.store.put(f"artifacts/{KEY}.read/manifest.json", b"{}"))
    refused(lambda: require_conditional_writes(reader.store))
    refused(lambda: reader.store.move(f"artifacts/{KEY}.read", "artifacts/moved"))


@pytest.mark.parametrize("role", ROLES)
def test_no_role_leaves_its_store(bucket: Bucket, role: str) -> None:
    """Another prefix of the bucket, the bucket itself, its policy, and another bucket."""
    owner, store = bucket.owner, bucket.stores[role]
    other = S3Store(f"s3://{owner._bucket}/other", owner._service, existing=True)
    other.put("artifacts/x", b"x")
    beside = S3Store(other.uri, store._service, existing=True)
    refused(lambda: beside.get("artifacts/x"))
    refused(lambda: beside.put("artifacts/x", b"y"))
    client = Client.of(store._service)
    for call in (client.delete_bucket_policy, client.remove_bucket, client.get_bucket_policy):
        with pytest.raises(Exception, match=r"AccessDenied|Access Denied"):
            call(owner._bucket)
    elsewhere = S3Store(f"s3://poolbench-test-{uuid.uuid4().hex[:8]}", owner._service)
    with pytest.raises(StoreError):
        S3Store(elsewhere.uri, store._service, existing=True).put("artifacts/x", b"x")
