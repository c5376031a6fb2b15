"""A Redis server with a password, on a free port, in a folder of its own."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from deploy.local.state import free_port
from tests.servers.authority import Certificate
from tests.waiting import wait_until

PASSWORD = "test-password"


def available() -> bool:
    """Whether this machine has a Redis server to start."""
    return shutil.which("redis-server") is not None


#: Marks of a test that needs a server.
NEEDED = (
    pytest.mark.lane(name="brokers"),
    pytest.mark.skipif(not available(), reason="needs the Debian package redis-server"),
)
#: Both kinds of broker, as parameters of a fixture that calls `broker`.
BROKERS = ("folder", pytest.param("redis", marks=NEEDED))


@contextmanager
def broker(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of an empty broker: a folder, or a server of its own."""
    if kind == "redis":
        with serve(folder) as url:
            yield url
    else:
        yield f"filesystem://{folder}/queue"


def command(folder: Path, address: str, port: int, options: Mapping[str, object] | None = None) -> list[str]:
    """Return the command of a server that keeps nothing on disk, unless `options` say otherwise."""
    given = {"port": port, "bind": address, "requirepass": PASSWORD, "dir": folder, "save": "", **(options or {})}
    return ["redis-server", *(part for name, value in given.items() for part in (f"--{name}", *str(value).split(" ")))]


@contextmanager
def serve(folder: Path, files: Certificate | None = None, options: Mapping[str, object] | None = None) -> Iterator[str]:
    """Runs a server, with a certificate one that speaks TLS only; yields its address."""
    port = free_port()
    options = dict(options or {})
    if files is not None:
        places = {"tls-cert-file": files.cert, "tls-key-file": files.key, "tls-ca-cert-file": files.authority}
        options |= {"port": 0, "tls-port": port, "tls-auth-clients": "no", **places}
    with (folder / "redis.log").open("w") as log:
        server = subprocess.Popen(command(folder, "127.0.0.1", port, options), stdout=log, stderr=log)
    url = f"{'rediss' if files else 'redis'}://:{PASSWORD}@127.0.0.1:{port}/0"
    try:
        _wait(url, {"ssl_ca_certs": str(files.authority)} if files else {})
        yield url
    finally:
        server.terminate()
        server.wait()


def _wait(url: str, tls: dict[str, str]) -> None:
    def answers() -> bool:
        try:
            return bool(redis.Redis.from_url(url, **tls).ping())
        except redis.ConnectionError:
            return False

    wait_until(answers)
