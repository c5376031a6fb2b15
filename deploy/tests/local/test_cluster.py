"""The start of a local cluster on a machine that lacks something, or whose ports others take."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from deploy.local import cluster
from deploy.local.state import REPOSITORY, load

from poolbench.errors import ConfigError
from poolbench.machine import preflight

#: Start the head of a cluster, as `up` does it before it deploys the services.
_START = "from deploy.local.cluster import _start; from deploy.local.state import state_folder; _start(state_folder())"


def test_what_the_machine_lacks_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster._check_machine()
    capsys.readouterr()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="the cluster was not started"):
        cluster._check_machine()
    said = capsys.readouterr().err
    assert "error: compiler: CXX=no-such-compiler is not on PATH" in said and "1 error to correct first" in said
    monkeypatch.setenv(preflight.SKIP, "1")
    cluster._check_machine()
    assert "going on in spite of 1 error" in capsys.readouterr().err


@pytest.mark.lane(name="nodes")
def test_a_port_that_another_program_took_meanwhile_is_one_line(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
    environment["POOLBENCH_STATE"] = str(tmp_path)
    command = [sys.executable, "-m", "deploy.local.cluster"]
    try:
        subprocess.run([sys.executable, "-c", _START], check=True, cwd=REPOSITORY, env=environment)
        started = load(tmp_path)
        assert started is not None
        port = urlsplit(started.http).port
        with socket.create_server(("127.0.0.1", port or 0)):
            said = subprocess.run(
                [*command, "up"], check=False, capture_output=True, text=True, cwd=REPOSITORY, env=environment
            )
        assert said.returncode == 2, said.stderr
        assert f"error the services cannot listen at {started.http}" in said.stdout
        assert "make cluster-down" in said.stdout and "Traceback" not in said.stdout + said.stderr
    finally:
        subprocess.run([*command, "down"], check=True, cwd=REPOSITORY, env=environment)
