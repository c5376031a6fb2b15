"""A real S3 service on one machine of a test cluster, behind a proxy that can disturb every request."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.servers.ceph import Ceph
from tests.servers.machines import Machine
from tests.servers.meddler import Fault, Meddler

from poolbench.settings import S3Settings
from poolbench.storage.s3 import S3Store

URI = "s3://poolbench-test/nodes"


@dataclass
class Gateway:
    """Ceph's gateway, which listens on its machine only, and the proxy, which all machines reach.

    Attributes:
        started: Done when the gateway answers for the first time.
    """

    ceph: Ceph
    meddler: Meddler
    started: Future[None]

    @property
    def service(self) -> S3Settings:
        """Return the service as other machines reach it."""
        return self.ceph.service.model_copy(update={"endpoint": self.meddler.endpoint})

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings of processes that use it."""
        service = self.service
        named = {
            "endpoint": service.endpoint,
            "access_key": service.access_key.get_secret_value(),
            "secret_key": service.secret_key.get_secret_value(),
        }
        return {"POOLBENCH_STORE": URI} | {S3Settings.variable(name): value for name, value in named.items()}

    @cached_property
    def store(self) -> S3Store:
        """Return its store, for threads on its machine: it does not go through the proxy."""
        return S3Store(URI, self.ceph.service)

    def disturb(self, *faults: Fault) -> None:
        """Let every request meet one of these faults; none for undisturbed requests."""
        self.meddler.standing = faults

    def kill(self) -> None:
        """End all daemons with SIGKILL."""
        self.ceph.stop(signal.SIGKILL)

    def start(self) -> None:
        """Start the daemons again, and wait until the gateway answers."""
        self.ceph.start()

    def command(self, *arguments: str) -> None:
        """Run an operator's command, such as `osd set pausewr`."""
        environment = {**os.environ, "CEPH_CONF": str(self.ceph.folder / "ceph.conf")}
        subprocess.run(["ceph", *arguments], env=environment, check=True, capture_output=True)


@contextmanager
def serve(machine: Machine, folder: Path) -> Iterator[Gateway]:
    """Run a gateway on a machine, with its data in an empty folder. Call its methods in threads of the machine."""
    with machine.threads() as threads:
        ceph = threads.submit(Ceph, folder).result()
        meddler = threads.submit(Meddler, str(ceph.service.endpoint), machine.address).result()
        started = threads.submit(ceph.start)
        try:
            yield Gateway(ceph, meddler, started)
        finally:
            wait([started])
            meddler.stop()
            ceph.stop()
