"""An engine's process ends with the process that started it."""

import os
import subprocess
import sys

from tests.waiting import PATIENCE_S

from poolbench.settings import ProcessSettings

WATCHING = """
import time
from poolbench_steerer.plugin.worker import end_with_owner
end_with_owner(interval_s=0.1)
print("watching", flush=True)
time.sleep(600)
"""


def start(owner_id: int) -> subprocess.Popen[str]:
    environment = {**os.environ, ProcessSettings.variable("engine_owner"): str(owner_id)}
    return subprocess.Popen([sys.executable, "-c", WATCHING], env=environment, stdout=subprocess.PIPE, text=True)


def test_an_engine_process_ends_with_its_owner():
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    engine = start(owner.pid)
    assert engine.stdout is not None and engine.stdout.readline() == "watching\n"
    assert engine.poll() is None
    owner.kill()  # stays a zombie until it is waited for, which must be enough
    assert engine.wait(timeout=PATIENCE_S) == 1
    owner.wait()
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    assert start(owner.pid).wait(timeout=PATIENCE_S) == 1
