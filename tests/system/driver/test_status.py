"""The status of a local cluster, as deploy shows it, with the messages that the driver shows."""

from pathlib import Path

import pytest
from deploy.local import apps, cluster, head, state
from driver.tests.cli import test_status as of_driver
from tests.poison import POISON

from poolbench.queue import TaskQueue

queue = of_driver.queue


def test_status_of_the_cluster(queue: TaskQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve is left out: what it says of replicas has nothing to do with messages."""
    with monkeypatch.context() as patched, cluster._CONSOLE.capture() as captured:
        patched.setattr(cluster, "_living", state.new_cluster)
        patched.setattr(head, "connect", lambda running: None)
        patched.setattr(apps, "states", lambda: [apps.AppState("prober", "RUNNING", 1)])
        cluster.status(tmp_path)
    (line,) = [line for line in captured.get().splitlines() if "RUNNING" in line]
    assert line.split() == ["prober", "RUNNING", "1", str(len(POISON) + 1), str(len(POISON)), "4"]
    assert "the \\x1b[31mstore\\nis away" in captured.get().replace("\n", "")
