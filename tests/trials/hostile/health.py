"""Asks every service for its health, over and over, in a process of its own: `python -m tests.trials.hostile.health`.

The trial's own work must not slow down its clock, so this imports no more than the standard library and the names
of the services.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from poolbench.contracts.wire import SERVICES

SOURCE = "127.0.0.3"
_PAUSE_S = 0.25
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Beat:
    """One question: which service, when, how long it took, and the status (0 for none)."""

    service: str
    started_s: float
    wall_s: float
    status: int


@contextmanager
def watched(address: str) -> Iterator[list[Beat]]:
    """Asks while the block runs; the beats are there after it."""
    beats: list[Beat] = []
    with TemporaryDirectory(prefix="poolbench-hostile-") as folder:
        log = Path(folder) / "beats.jsonl"
        with log.open("w") as output:
            process = Popen([sys.executable, "-m", __name__, address], stdout=output, stdin=PIPE)
        try:
            yield beats
        finally:
            process.terminate()
            process.wait()
            lines = log.read_text().splitlines()
            beats += [Beat(**json.loads(line)) for line in lines if line.endswith("}")]


def _ask(address: str, service: str) -> int:
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, source_address=(SOURCE, 0))
    try:
        connection.request("GET", f"/{service}/health")
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _watch(address: str, service: str) -> None:
    while True:
        started = time.monotonic()
        status = _ask(address, service)
        beat = {"service": service, "started_s": started, "wall_s": time.monotonic() - started, "status": status}
        sys.stdout.write(json.dumps(beat) + "\n")
        sys.stdout.flush()
        time.sleep(_PAUSE_S)


def main() -> None:
    """Asks until it is ended, or until the process that started it is gone and its input closes."""
    threads = [threading.Thread(target=_watch, args=(sys.argv[1], name), daemon=True) for name in SERVICES]
    for thread in threads:
        thread.start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
