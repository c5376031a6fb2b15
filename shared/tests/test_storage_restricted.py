"""What belongs to sensitive concepts lies behind credentials of its own: folders by mode and user, S3 by access key."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from tests.servers.background import Background

from poolbench.errors import ConfigError, RestrictedError
from poolbench.storage import NO_ACCESS, Artifacts, open_store
from poolbench.storage.guarded import GuardedStore

KEY, OPEN_KEY, NOBODY = "restricted.corpus.passages.1", "corpus.passages.1", 65534
TABLE = pa.table({"x": [1, 2]})
ORDINARY = {"POOLBENCH_S3_ACCESS_KEY": "ordinary", "POOLBENCH_S3_SECRET_KEY": "ordinary-secret"}
OWN = {"POOLBENCH_RESTRICTED_S3_ACCESS_KEY": "own", "POOLBENCH_RESTRICTED_S3_SECRET_KEY": "own-secret"}


def artifacts(uri: str | Path, restricted: str = "", environment: dict[str, str] | None = None) -> Artifacts:
    with patch.dict(os.environ, environment or {}):
        return Artifacts(open_store(str(uri), restricted))


def use(store: Artifacts) -> None:
    """Writes, reads, lists and deletes under a restricted key."""
    store.write_table(KEY, TABLE)
    assert store.read_table(KEY) == TABLE
    assert KEY in {key for key, _ in store.objects()}
    store.delete(KEY)
    assert not store.exists(KEY)


def attempts(store: Artifacts) -> list[Callable[[], Any]]:
    """Every way to touch a restricted artifact."""
    path = f"restricted/{KEY}/manifest.json"
    return [
        lambda: store.write_table(KEY, TABLE),
        lambda: store.writer(KEY).put("table.arrow", b"x"),
        lambda: store.read_table(KEY),
        lambda: store.exists(KEY),
        lambda: store.delete(KEY),
        lambda: list(store.store.list("restricted/")),
        lambda: store.store.put(path, b"x", if_absent=True),
        lambda: store.store.delete(path),
        lambda: store.store.move(f"restricted/{KEY}", f"restricted/damaged/{KEY}/now"),
        store.require_restricted,
    ]


def test_the_default_is_a_folder_of_its_own_that_its_owner_alone_may_enter(tmp_path: Path) -> None:
    (tmp_path / "store" / "restricted").mkdir(parents=True, mode=0o755)  # as an earlier version left it
    store = artifacts(tmp_path / "store")
    use(store)
    store.write_table(KEY, TABLE)
    assert (tmp_path / "store" / "restricted").stat().st_mode & 0o777 == 0o700
    assert all(not file.stat().st_mode & 0o077 for file in tmp_path.rglob("*") if file.is_file())


def test_what_is_restricted_is_never_moved_out(tmp_path: Path) -> None:
    store = artifacts(tmp_path / "store")
    store.write_table(KEY, TABLE)
    with pytest.raises(RestrictedError, match="stays below restricted/"):
        store.store.move(f"restricted/{KEY}", f"damaged/{KEY}")
    assert store.read_table(KEY) == TABLE


def test_restricted_artifacts_can_lie_elsewhere(tmp_path: Path) -> None:
    store = artifacts(tmp_path / "store", environment={"POOLBENCH_RESTRICTED_STORE": str(tmp_path / "safe")})
    store.write_table(KEY, TABLE)
    store.write_table(OPEN_KEY, TABLE)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["artifacts"]
    assert [path.name for path in (tmp_path / "safe").iterdir()] == ["restricted"]
    assert (tmp_path / "safe" / "restricted").stat().st_mode & 0o777 == 0o700
    assert {key for key, _ in store.objects()} == {KEY, OPEN_KEY}


def test_a_process_without_access_says_so_whatever_it_tries(tmp_path: Path) -> None:
    artifacts(tmp_path).write_table(KEY, TABLE)
    without = artifacts(tmp_path, NO_ACCESS)
    for attempt in attempts(without):
        with pytest.raises(RestrictedError, match="POOLBENCH_RESTRICTED_STORE"):
            attempt()
    without.write_table(OPEN_KEY, TABLE)
    assert {key for key, _ in without.objects()} == {OPEN_KEY}
    assert [info.path.split("/")[0] for info in without.store.list()] == ["artifacts", "artifacts"]
    assert artifacts(tmp_path).read_table(KEY) == TABLE


SCRIPT = """
import os, sys
from poolbench.errors import RestrictedError
from poolbench.storage import Artifacts, open_store
assert Artifacts(open_store(sys.argv[1])).read_table({key!r}).num_rows == 2
os.setgroups([]); os.setgid({user}); os.setuid({user})
store = Artifacts(open_store(sys.argv[1]))
assert store.read_table({open_key!r}).num_rows == 2
for attempt in (store.read_table, store.exists, store.delete):
    try:
        attempt({key!r})
    except RestrictedError as error:
        assert error.code == "restricted" and "owner only" in str(error), error
    else:
        sys.exit("not refused")
assert [key for key, _ in store.objects()] == [{open_key!r}] * 2
"""


def test_another_user_of_the_machine_is_refused() -> None:
    """The credentials of a folder are the user; a user who may read the ordinary store may not enter this."""
    if sys.platform != "linux" or subprocess.run(["id", "-u"], check=False, capture_output=True).stdout.strip() != b"0":
        pytest.skip("only root can start a process of another user")
    root = Path(tempfile.mkdtemp())
    try:
        artifacts(root).write_table(KEY, TABLE)
        artifacts(root).write_table(OPEN_KEY, TABLE)
        root.chmod(0o755)
        for file in (root / "artifacts").rglob("*"):
            file.chmod(0o755)
        script = SCRIPT.format(user=NOBODY, key=KEY, open_key=OPEN_KEY)
        done = subprocess.run([sys.executable, "-c", script, str(root)], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(root)


class PolicedS3:
    """A real S3 interface that checks access keys, as a bucket policy does: each key on its side of ``restricted/``."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._moto = DomainDispatcherApplication(create_backend_app)
        self.seen: list[tuple[str, str, bool]] = []  # method, access key, whether restricted
        self._server = Background(make_server("127.0.0.1", 0, self._app, threaded=True))
        self.endpoint = self._server.address

    def stop(self) -> None:
        self._server.stop()

    def _app(self, environ: dict[str, Any], start_response: Any) -> Any:
        from urllib.parse import parse_qs

        signed = environ.get("HTTP_AUTHORIZATION", "") + environ["QUERY_STRING"].replace("%2F", "/")
        key = (re.search(r"Credential=([^/]+)/", signed) or ["", "nobody"])[1]
        query = parse_qs(environ["QUERY_STRING"])
        target = environ["PATH_INFO"] + "/" + query.get("prefix", [""])[0]
        restricted = "/pool/restricted/" in target.replace("//", "/")
        self.seen.append((environ["REQUEST_METHOD"], key, restricted))
        if key != ("own" if restricted else "ordinary"):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>policy</Message></Error>"]
        return self._moto(environ, start_response)


@pytest.fixture(scope="module")
def police() -> Iterator[PolicedS3]:
    pytest.importorskip("moto.server")
    server = PolicedS3()
    yield server
    server.stop()


S3_URI = "s3://policed/pool"


def test_restricted_objects_are_reached_by_their_own_access_key_alone(police: PolicedS3) -> None:
    environment = {**ORDINARY, **OWN, "POOLBENCH_S3_ENDPOINT": police.endpoint}
    store = artifacts(S3_URI, environment=environment)
    police.seen.clear()
    use(store)
    assert {key for _, key, restricted in police.seen if restricted} == {"own"}
    store.write_table(OPEN_KEY, TABLE)
    assert {key for _, key, restricted in police.seen if not restricted} == {"ordinary"}
    assert store.store.put(f"restricted/{KEY}/once", b"1", if_absent=True)
    assert not store.store.put(f"restricted/{KEY}/once", b"2", if_absent=True)


def test_the_ordinary_credentials_do_not_suffice(police: PolicedS3) -> None:
    """Neither here, where they are never tried, nor at the server, when an operator gives them twice."""
    endpoint = {"POOLBENCH_S3_ENDPOINT": police.endpoint}
    artifacts(S3_URI, environment={**ORDINARY, **OWN, **endpoint}).write_table(KEY, TABLE)
    police.seen.clear()
    for attempt in attempts(artifacts(S3_URI, environment={**ORDINARY, **endpoint})):
        with pytest.raises(RestrictedError, match="set POOLBENCH_RESTRICTED_S3_ACCESS_KEY"):
            attempt()
    assert not any(restricted for _, _, restricted in police.seen)
    with pytest.raises(ConfigError, match="credentials of their own"):
        artifacts(S3_URI, environment={**ORDINARY, **dict.fromkeys(OWN, "ordinary"), **endpoint})


def test_wrong_restricted_credentials_are_named_and_never_shown(police: PolicedS3) -> None:
    wrong = dict.fromkeys(OWN, "wrong-and-secret")
    store = artifacts(S3_URI, environment={**ORDINARY, **wrong, "POOLBENCH_S3_ENDPOINT": police.endpoint})
    for attempt in attempts(store):
        with pytest.raises(RestrictedError) as refused:
            attempt()
        assert "check POOLBENCH_RESTRICTED_S3_ACCESS_KEY" in str(refused.value)
        assert "wrong-and-secret" not in str(refused.value)
    store.write_table(OPEN_KEY, TABLE)
    assert OPEN_KEY in {key for key, _ in store.objects()} and KEY not in {key for key, _ in store.objects()}


def test_another_service_and_bucket_can_hold_them(police: PolicedS3, tmp_path: Path) -> None:
    environment = {**OWN, "POOLBENCH_RESTRICTED_S3_ENDPOINT": police.endpoint}
    store = artifacts(tmp_path, S3_URI, environment)
    assert isinstance(store.store, GuardedStore)
    use(store)
    store.write_table(OPEN_KEY, TABLE)
    assert [path.name for path in tmp_path.iterdir()] == ["artifacts"]


def test_only_restricted_paths_are_guarded_however_they_are_spelled(tmp_path: Path) -> None:
    without = artifacts(tmp_path, NO_ACCESS)
    for path in ("restricted/a", "./restricted/a", ".//restricted//a", "restricted"):
        with pytest.raises(RestrictedError):
            without.store.put(path, b"x")
    with pytest.raises(ConfigError, match="relative"):
        without.store.put("artifacts/../restricted/a", b"x")
    for key in ("x/../../restricted/restricted.a", "../restricted/restricted.a"):
        with pytest.raises(ConfigError, match="relative"):
            without.exists(key)
    assert without.store.put("restricted-not/a", b"x")
