"""Machines of a test: network namespaces with an address each, joined by a bridge. They share files and processors."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S, wait_until

_NETWORK = "10.213.7"
_MAX_NAME = 15  # bytes of the name of a network interface
_CLONE_NEWNET = 0x40000000  # of <sched.h>


@dataclass(frozen=True)
class Machine:
    """One namespace; its processes reach the other machines only."""

    name: str
    address: str
    switch: str
    environment: dict[str, str]

    def start(self, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program that runs until `kill`."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self._inside(command), env=self.environment | environment, stdout=output, stderr=output
            )

    def call(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        given = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "env": self.environment}
        return subprocess.run(self._inside(command), check=False, **(given | options))

    def threads(self, count: int = 1) -> ThreadPoolExecutor:
        """Return threads of this process that are on the machine: their sockets, threads and processes are too."""
        return ThreadPoolExecutor(count, f"on-{self.name}", initializer=self._enter)

    def _enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)  # `os.setns` came with Python 3.12
        with Path("/run/netns", self.name).open() as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns", self.name)

    def processes(self) -> dict[int, str]:
        """Return the command line of every process by its id."""
        found = {}
        for line in _ip("netns", "pids", self.name).split():
            with suppress(FileNotFoundError, ProcessLookupError):
                found[int(line)] = Path("/proc", line, "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def ports(self) -> dict[str, str]:
        """Return the command line of every process that listens for other machines, by `address:port`."""
        lines, named = self.call(["ss", "--listening", "--tcp", "--numeric", "--processes"]).stdout, self.processes()
        found = re.findall(r"(\S+):(\d+)\s+\S+\s+users:.*?pid=(\d+)", lines)
        loopback = ("127.", "[::1]", "[::ffff:127.")
        return {
            f"{self.address}:{port}": named.get(int(pid), "") for at, port, pid in found if not at.startswith(loopback)
        }

    def kill_processes(self, text: str) -> list[int]:
        """End with SIGKILL the processes whose command line has a text; return their ids."""
        found = [number for number, line in self.processes().items() if text in line]
        for number in found:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return found

    def kill(self) -> None:
        """Cut the network, then end every process with SIGKILL, as when a machine loses its power."""
        self.connect("down")
        wait_until(self._nothing_left)

    def power_on(self) -> None:
        """Connect a machine that was killed to the network again."""
        self.connect("up")

    def connect(self, state: str) -> None:
        """Set the machine's end of the cable `up` or `down`."""
        _ip("-n", self.switch, "link", "set", self.name, state)

    def _nothing_left(self) -> bool:
        return not self.kill_processes("")

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]


def missing() -> str:
    """Return why there can be no such machines here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need the rights of root"
    if shutil.which("ip") is None:
        return "needs the Debian package iproute2"
    name = f"pb{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


@contextmanager
def machines(names: Sequence[str], environment: dict[str, str]) -> Iterator[dict[str, Machine]]:
    """Yield machines by name. At the end all their processes are killed."""
    number = os.getpid()
    with ExitStack() as stack:
        switch = _namespace(stack, f"pb{number}switch")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        found = {}
        for position, name in enumerate(names, 1):
            namespace = _namespace(stack, f"pb{number}{name}")
            found[name] = Machine(namespace, f"{_NETWORK}.{position}", switch, environment)
            _plug_in(found[name])
            stack.callback(found[name].kill)
        yield found


@contextmanager
def disk(place: Path, num_bytes: int) -> Iterator[None]:
    """Give a folder a file system of its own. Machines see it if they start processes later."""
    place.mkdir()
    options = f"size={num_bytes},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "poolbench-store", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def _namespace(stack: ExitStack, name: str) -> str:
    assert len(name) <= _MAX_NAME, name
    _ip("netns", "add", name)
    stack.callback(_ip, "netns", "del", name)
    _ip("-n", name, "link", "set", "lo", "up")
    return name


def _plug_in(machine: Machine) -> None:
    """Connect a machine to the bridge by a pair of virtual interfaces."""
    peer = ("peer", "name", "eth0", "netns", machine.name)
    _ip("-n", machine.switch, "link", "add", machine.name, "type", "veth", *peer)
    _ip("-n", machine.switch, "link", "set", machine.name, "master", "bridge")
    _ip("-n", machine.switch, "link", "set", machine.name, "up")
    _ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "eth0")
    _ip("-n", machine.name, "link", "set", "eth0", "up")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout
