"""Starts queue consumers in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pages import REPOSITORY


@contextmanager
def consuming(url: str, store: Path, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tests.servers.consumer` on a broker and a store; its output goes to `log`."""
    settings = {"POOLBENCH_BROKER": url, "POOLBENCH_STORE": str(store), **environment}
    command = [sys.executable, "-m", "tests.servers.consumer"]
    with log.open("wb") as output:
        consumer = subprocess.Popen(command, cwd=REPOSITORY, env=os.environ | settings, stdout=output, stderr=output)
        try:
            yield consumer
        finally:
            consumer.kill()
            consumer.wait()
