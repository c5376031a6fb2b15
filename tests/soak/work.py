"""The work of the soak test: the same run again and again, each from an empty store, with equal figures."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field

from tests.figures import Rows, differences
from tests.servers.nodes import LONG_S, Nodes

#: Ends of the driver that are no failure: by SIGKILL, and by a part of the cluster that was away when it began.
_KILLED = -9
_MAX_STARTS = 50


@dataclass
class Work:
    """Runs one after another in a thread, until `stop`."""

    nodes: Nodes
    expected: Rows
    num_runs: int = 0
    num_started: int = 0
    findings: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # what the driver said when it gave up

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._committed: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def note_committed(self) -> None:
        """Remember what is committed now; none of it may be lost before the run ends."""
        with self._lock:
            self._committed |= self.nodes.manifests().keys()

    def stop(self) -> None:
        """Let the current run end, and wait for it."""
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                self.nodes.empty_store()
                self._committed = set()
            self._run_to_its_end()

    def _run_to_its_end(self) -> None:
        """Start the same command until it succeeds, as a user would, and check its figures."""
        for _ in range(_MAX_STARTS):
            self.num_started += 1
            done = self._start()
            if done.returncode == 0:
                break
            if done.returncode != _KILLED:
                self.messages.append(f"exit {done.returncode}: {done.stderr.strip()[-500:]}")
            if "Traceback" in done.stderr:
                self.findings.append(f"the driver ended with a traceback: {done.stderr[-2000:]}")
        else:
            self.findings.append(f"a run did not succeed in {_MAX_STARTS} starts")
            return
        self.num_runs += 1
        self.findings += differences(self.nodes.rows(), self.expected)
        with self._lock:
            lost = self._committed - self.nodes.manifests().keys()
        self.findings += [f"lost after it was committed: {path}" for path in sorted(lost)]

    def _start(self) -> subprocess.CompletedProcess[str]:
        return self.nodes.desk.call(self.nodes.command(), timeout=LONG_S)
