"""A real S3 service for tests: Ceph's RADOS gateway in a folder and a process group of its own, on free ports."""

import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import SecretStr
from tests.waiting import wait_until

from poolbench.settings import S3Settings

_SCRIPT = Path(__file__).with_name("s3.sh")
_PROGRAMS = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "ceph-mgr", "ceph-authtool", "monmaptool")
#: The script uses three ports in a row.
_NUM_PORTS = 3
_FIRST_PORT, _LAST_PORT = 20_000, 30_000
#: Daemons that take longer to end are killed: they keep nothing that a test still needs.
_END_WITHIN_S = 5.0


def answers(address: str) -> bool:
    """Return whether an HTTP server answers."""
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def missing() -> list[str]:
    """Return the programs that this machine lacks."""
    return [name for name in _PROGRAMS if shutil.which(name) is None]


class Ceph:
    """A gateway that can be stopped and started again; its data stays in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_ports()
        self.service = S3Settings(
            endpoint=f"http://127.0.0.1:{self.port}",
            access_key=SecretStr("testkey"),
            secret_key=SecretStr("testsecret123"),
        )
        self._group: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemons and wait until the gateway answers."""
        # They end with the test process, even if it is killed.
        command = ["setpriv", "--pdeathsig", "TERM", "bash", str(_SCRIPT), str(self.folder), str(self.port)]
        with (self.folder / "ceph.log").open("ab") as log:
            self._group = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(self._answers)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """End all daemons: they are the process group of the script."""
        group, self._group = self._group, None
        if group is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(group.pid, sign)
        group.wait()
        try:
            wait_until(lambda: not _alive(group.pid), _END_WITHIN_S)
        except AssertionError:
            os.killpg(group.pid, signal.SIGKILL)
            wait_until(lambda: not _alive(group.pid))

    def add_user(self, name: str, access_key: str, secret_key: str) -> None:
        """Create a user, who may do nothing but what policies say and own no bucket."""
        keys = [f"--access-key={access_key}", f"--secret={secret_key}", "--max-buckets=-1"]
        command = ["radosgw-admin", "user", "create", f"--uid={name}", f"--display-name={name}", *keys]
        environment = {**os.environ, "CEPH_CONF": str(self.folder / "ceph.conf")}
        subprocess.run(command, env=environment, check=True, capture_output=True)

    def _answers(self) -> bool:
        assert self._group is not None and self._group.poll() is None, (self.folder / "ceph.log").read_text()
        return answers(str(self.service.endpoint))


@contextmanager
def serve(folder: Path) -> Iterator[Ceph]:
    """Run a gateway on an empty folder."""
    ceph = Ceph(folder)
    try:
        ceph.start()
        yield ceph
    finally:
        ceph.stop()


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _free_ports() -> int:
    """Return the first of three ports in a row that are free now."""
    offset = os.getpid() % 3000
    for first in range(_FIRST_PORT + offset * _NUM_PORTS, _LAST_PORT, _NUM_PORTS):
        if all(map(_is_free, range(first, first + _NUM_PORTS))):
            return first
    raise AssertionError(f"no {_NUM_PORTS} free ports in a row up to {_LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
