"""A local cluster that `make cluster-up` would start, with settings of the caller that it must replace."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.local.state import free_port
from tests.pages import REPOSITORY

#: Settings of the caller that every cluster replaces.
WRONG = {"RAY_SERVE_ENABLE_DIRECT_INGRESS": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
LONG_S = 1200  # a guard against hanging


def command(verb: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the local cluster, such as `up`."""
    program = [sys.executable, "-m", "deploy.local.cluster", verb]
    return subprocess.run(
        program, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=LONG_S, check=False
    )


@contextmanager
def cluster(state: Path) -> Iterator[Path]:
    """Start a cluster with a state folder of its own, on a free port; yield the folder, and stop the cluster."""
    own = {"POOLBENCH_STATE": str(state), "POOLBENCH_HTTP_PORT": str(free_port())}
    environment = {**os.environ, **own, **WRONG, "HF_HUB_CACHE": str(state.with_name("hub"))}
    try:
        up = command("up", environment)
        assert up.returncode == 0, up.stdout + up.stderr
        yield state
    finally:
        command("down", environment)
