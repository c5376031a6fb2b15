"""The cluster under trial: its addresses, its processes and their memory."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from deploy.local.state import Cluster, load, state_folder

from poolbench.errors import ConfigError

MIB = 2**20
_SETTLE_S = 8.0
_SETTLE_STEP_S = 1.0


@dataclass(frozen=True)
class Process:
    """One process of the cluster."""

    pid: int
    name: str
    uss: int


@dataclass(frozen=True)
class Target:
    """A running cluster, and the token to talk to it."""

    record: Cluster
    token: str

    @property
    def http(self) -> str:
        """Base address of the services."""
        return self.record.http

    def processes(self) -> dict[int, Process]:
        """Every live process by pid, with the memory that ends with it (USS)."""
        found = {}
        for process in self.record.processes():
            with suppress(psutil.Error):
                name = _short(process.cmdline())
                found[process.pid] = Process(process.pid, name, process.memory_full_info().uss)
        return found

    def settled(self, at_most: float) -> dict[int, Process]:
        """The processes once they hold so few bytes, or after a few seconds: buffers in flight are no growth."""
        deadline = time.monotonic() + _SETTLE_S
        while total(now := self.processes()) > at_most and time.monotonic() < deadline:
            time.sleep(_SETTLE_STEP_S)
        return now


def total(processes: dict[int, Process]) -> int:
    """Memory of all processes, in bytes."""
    return sum(process.uss for process in processes.values())


@contextmanager
def running() -> Iterator[Target]:
    """The cluster of the state folder; started, and stopped again, where none runs.

    Raises:
        ConfigError: It is not recorded.
    """
    state = state_folder()
    found = load(state)
    started = found is None or not found.runs()
    try:
        _command("up")  # does nothing where all runs, and waits for what is about to
        record = load(state)
        if record is None:
            raise ConfigError(f"no cluster is recorded in {state}: start one with `make cluster-up`")
        yield Target(record, Path(record.token_file).read_text().strip())
    finally:
        if started:
            _command("down")


def _command(verb: str) -> None:
    subprocess.run([sys.executable, "-m", "deploy.local.cluster", verb], check=True)


def _short(command: list[str]) -> str:
    """What a person calls the process: Ray writes titles such as `ray::ServeReplica:prober:prober`."""
    words = " ".join(command).split()
    if not words:
        return "?"
    if words[0].startswith("ray::") or "::" in words[0]:
        return words[0]
    scripts = [word for word in words[1:4] if word.endswith(".py")]
    return Path(scripts[0] if scripts else words[0]).name
