"""HAProxy with the project's own configuration, in front of a server of this machine."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deploy.local.state import free_port
from tests.waiting import wait_until

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "haproxy.cfg"
#: Marks of a test that needs the program.
NEEDED = [
    pytest.mark.lane(name="gate"),
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs the Debian package haproxy"),
]


@contextmanager
def before(port: int, log: Path, **limits: str) -> Iterator[int]:
    """Run the proxy before a server on this port; yield its own port. `limits` are variables of the configuration."""
    own_port = free_port()
    places = {"LISTEN": f"127.0.0.1:{own_port}", "SERVICES": f"127.0.0.1:{port}"}
    with log.open("w") as output:
        proxy = subprocess.Popen(
            ["haproxy", "-f", str(CONFIGURATION)], env=os.environ | places | limits, stdout=output, stderr=output
        )
    try:
        wait_until(lambda: _listens(own_port) or proxy.poll() is not None)
        assert proxy.poll() is None, log.read_text()
        yield own_port
    finally:
        proxy.kill()
        proxy.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
