"""SeaweedFS, the S3 service of Docker Compose, in a folder and a process of its own, on free ports."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import SecretStr
from tests.servers.ceph import answers
from tests.waiting import wait_until

from poolbench.settings import S3Settings

ROOT = ("testkey", "testsecret123")
_SERVERS = ("s3", "master", "volume", "filer")
_PROGRAM = shutil.which("weed", path=str(Path(sys.executable).parent))


class Seaweed:
    """A server whose users have no rights but those of the bucket's policy; its data stay in its folder."""

    def __init__(self, folder: Path, identities: str) -> None:
        self.folder, self._ports = folder, _free_ports(len(_SERVERS) * 2)
        (folder / "s3.json").write_text(identities)
        self.endpoint = f"http://127.0.0.1:{self._ports[0]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server as the compose file does, and wait until it answers."""
        assert _PROGRAM is not None
        names = [f"{server}.port{kind}" for kind in ("", ".grpc") for server in _SERVERS]
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)]
        local = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=0"]
        command = [_PROGRAM, "server", f"-dir={self.folder}", "-s3", f"-s3.config={self.folder / 's3.json'}"]
        with (self.folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *local, *ports], stdout=log, stderr=log)
        wait_until(self._answers)

    def kill(self) -> None:
        """End the server without a warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def user(self, access: str, secret: str) -> S3Settings:
        """Return the settings of a client of this server."""
        return S3Settings(endpoint=self.endpoint, access_key=SecretStr(access), secret_key=SecretStr(secret))

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self.folder / "weed.log").read_text()
        return answers(f"{self.endpoint}/healthz")


def identities(users: Mapping[str, tuple[str, str]]) -> str:
    """Return the configuration of users by name; root alone may do everything."""
    listed = [
        {
            "name": name,
            "credentials": [{"accessKey": access, "secretKey": secret}],
            "actions": ["Admin"] if name == "root" else [],
        }
        for name, (access, secret) in users.items()
    ]
    return json.dumps({"identities": listed})


@contextmanager
def serve(folder: Path, configuration: str = "") -> Iterator[Seaweed]:
    """Run a server on an empty folder."""
    server = Seaweed(folder, configuration or identities({"root": ROOT}))
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_ports(number: int) -> list[int]:
    """Return ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]
