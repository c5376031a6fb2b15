"""The work of the soak test: the same run again and again, each from an empty store, with equal figures."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.figures import Rows, differences
from tests.servers.nodes import Nodes

_KILLED = -9
_MAX_STARTS = 200
_PAUSE_S = 2.0  # before the next start: a part of the cluster may be away
_TAIL = 500  # characters of the driver's last words that are reported


@dataclass
class Work:
    """Runs one after another in a thread, until `stop`. The figures of the first run are expected of all."""

    nodes: Nodes
    num_runs: int = 0
    num_started: int = 0
    findings: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # what the driver said when it gave up

    def __post_init__(self) -> None:
        self.first = threading.Event()  # set when the first run has ended
        self._expected: Rows | None = None
        self._stop = threading.Event()
        self._committed: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    @property
    def log(self) -> Path:
        """Return the file with the output of the driver that was started last."""
        return self.nodes.folder / "driver.log"

    def note_committed(self) -> None:
        """Remember what is committed now; none of it may be lost before the run ends."""
        with self._lock:
            self._committed |= self.nodes.manifests().keys()

    def stop(self) -> None:
        """Let the current run end, and wait for it."""
        self._stop.set()
        self._thread.join()

    def abort(self) -> None:
        """End the current run at once."""
        self._stop.set()
        while self._thread.is_alive():
            self.nodes.desk.kill_processes("poolbench-driver")
            self._thread.join(1)

    def _loop(self) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    self.nodes.empty_store()
                    self._committed = set()
                self._run_to_its_end()
                self.first.set()
        except Exception as error:
            self.findings.append(f"the soak test itself failed: {type(error).__name__}: {error}")
            raise
        finally:
            self.first.set()

    def _run_to_its_end(self) -> None:
        """Start the same command until it succeeds, as a user would, and check its figures."""
        for _ in range(_MAX_STARTS):
            code = self._start()
            if code == 0:
                break
            if code == _KILLED and self._stop.is_set():
                return
            said = self.log.read_text(errors="replace")
            if code != _KILLED:
                self.messages.append(f"exit {code}: {said.strip()[-_TAIL:]}")
            if "Traceback" in said:
                self.findings.append(f"the driver ended with a traceback: {said[-4 * _TAIL :]}")
            time.sleep(_PAUSE_S)
        else:
            self.findings.append(f"a run did not succeed in {_MAX_STARTS} starts")
            return
        self._check()

    def _start(self) -> int:
        self.num_started += 1
        self.log.write_bytes(b"")
        return self.nodes.start_driver(self.log).wait()

    def _check(self) -> None:
        self.num_runs += 1
        rows = self.nodes.rows()
        self._expected = self._expected or rows
        self.findings += differences(rows, self._expected)
        with self._lock:
            lost = self._committed - self.nodes.manifests().keys()
        self.findings += [f"lost after it was committed: {path}" for path in sorted(lost)]
