"""Each role of an S3 store tries what its policy forbids, and strangers try everything, on a real service."""

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from deploy.s3.policies import ROLES, bucket_policy
from pydantic import SecretStr
from tests.servers import ceph as server
from tests.servers.ceph import Ceph

from poolbench.contracts.wire import run_path
from poolbench.errors import PoolbenchError
from poolbench.settings import S3Settings
from poolbench.storage import Artifacts
from poolbench.storage.s3 import S3Store
from poolbench.storage.s3.client import Client

KEY = "prober.probe.1"
_SENTENCE = b"what only some may read"
#: Folders that a role may not write to, and not read from.
_NOT_WRITTEN = {
    "driver": ("elsewhere/",),
    "services": ("elsewhere/", "runs/", "cancelled/", "damaged/", "activations/"),
    "reader": ("elsewhere/", "artifacts/", "runs/", "scorers/", "health/"),
}
_NOT_READ: dict[str, tuple[str, ...]] = {"driver": (), "services": ("runs/",), "reader": ("failures/",)}
Attempt = tuple[str, Callable[[], object]]


def attack(folder: Path) -> list[str]:
    """Return findings about a service with the policies of `deploy/s3`."""
    with server.serve(folder) as ceph:
        bucket, other = (f"hostile-{secrets.token_hex(4)}" for _ in range(2))
        owner, elsewhere = (S3Store(f"s3://{name}/store", ceph.service) for name in (bucket, other))
        users = {role: _user(ceph, role) for role in ROLES}
        policy = bucket_policy({role: f"arn:aws:iam:::user/{role}" for role in ROLES}, owner.uri)
        Client.of(ceph.service).set_bucket_policy(bucket, json.dumps(policy))
        for store in (owner, elsewhere):
            _fill(store)
        findings = [
            f"{role} could: {what}"
            for role, service in users.items()
            for what, attempt in _attempts(role, service, owner, elsewhere)
            if _succeeds(attempt)
        ]
        findings += _strangers(ceph.service, owner)
        changed = [store.uri for store in (owner, elsewhere) if not _as_filled(store)]
        return findings + [f"objects of {uri} have changed" for uri in changed]


def _user(ceph: Ceph, role: str) -> S3Settings:
    access, secret = f"hostile-{role}", secrets.token_hex(16)
    ceph.add_user(role, access, secret)
    return ceph.service.model_copy(update={"access_key": SecretStr(access), "secret_key": SecretStr(secret)})


def _paths() -> list[str]:
    return [run_path("r", "state.json"), "failures/t.json", "scorers/contrast/b.json"]


def _fill(store: S3Store) -> None:
    artifacts = Artifacts(store)
    artifacts.write(KEY, {"table.arrow": _SENTENCE})
    for path in _paths():
        store.put(path, _SENTENCE)


def _as_filled(store: S3Store) -> bool:
    found = [Artifacts(store).read(KEY, "table.arrow")]
    found += [store.get(path) for path in _paths()]
    # A manifest and a table.
    return set(found) == {_SENTENCE} and len(list(store.list())) == len(_paths()) + 2


def _attempts(role: str, service: S3Settings, owner: S3Store, elsewhere: S3Store) -> Iterator[Attempt]:
    """Yield what a role may not do, by what it would mean."""
    own = S3Store(owner.uri, service, existing=True)
    beside = S3Store(owner.uri.replace("/store", "/beside"), service, existing=True)
    there = S3Store(elsewhere.uri, service, existing=True)
    client, bucket = Client.of(service), owner.uri.split("/")[2]
    for folder in _NOT_WRITTEN[role]:
        yield f"write below {folder}", lambda folder=folder: own.put(f"{folder}mine", b"x")
        yield f"overwrite below {folder}", lambda folder=folder: own.put(f"{folder}mine", b"x", if_absent=True)
    readable = {info.path for info in owner.list()}
    for path in sorted(path for path in readable if path.startswith(_NOT_READ[role])):
        yield f"read {path}", lambda path=path: own.get(path)
    if role != "driver":
        manifest = next(path for path in sorted(readable) if path.endswith("manifest.json"))
        yield "remove a committed artifact", lambda: own.delete(manifest)
    for name, store in (("another prefix", beside), ("another bucket", there)):
        yield f"write into {name}", lambda store=store: store.put("artifacts/x", b"x")
    yield "read another bucket", lambda: there.get(run_path("r", "state.json"))
    yield "list another bucket", lambda: list(there.list())
    for call in (client.get_bucket_policy, client.delete_bucket_policy, client.remove_bucket):
        yield call.__name__, lambda call=call: call(bucket)
    yield "make a bucket", lambda: client.make_bucket(f"{bucket}-{role}")


def _strangers(service: S3Settings, owner: S3Store) -> list[str]:
    """Return what clients without credentials, or with wrong ones, could do."""
    wrong = service.model_copy(update={"secret_key": SecretStr("wrong")})
    unknown = service.model_copy(update={"access_key": SecretStr("nobody")})
    attempts: list[Attempt] = []
    for name, other in (("a wrong secret", wrong), ("an unknown key", unknown)):
        store = S3Store(owner.uri, other, existing=True)
        attempts.append((f"{name}: read", lambda store=store: store.get(run_path("r", "state.json"))))
        attempts.append((f"{name}: write", lambda store=store: store.put("artifacts/x", b"x")))
        attempts.append((f"{name}: list", lambda store=store: list(store.list())))
    place = f"{service.endpoint}/{owner.uri.removeprefix('s3://')}"
    for method in ("GET", "PUT", "DELETE", "HEAD"):
        request = urllib.request.Request(f"{place}/{run_path('r', 'state.json')}", method=method)
        attempts.append((f"no credentials: {method}", partial(urllib.request.urlopen, request, timeout=60)))
    return [f"a stranger could: {what}" for what, attempt in attempts if _succeeds(attempt)]


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (PoolbenchError, urllib.error.HTTPError):
        return False
    except Exception as error:  # of the client itself, for calls that no store has
        if "AccessDenied" in str(error) or "Access Denied" in str(error) or "TooManyBuckets" in str(error):
            return False
        raise
    return True
