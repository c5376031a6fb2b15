"""A request that needs more memory than its replica has fails alone."""

import os
import subprocess
import sys

import pytest

PROBER = """
from fastapi.testclient import TestClient
from poolbench.http.api import build_api
from poolbench.machine.memory import limit_memory
from poolbench_prober.service import create

client = TestClient(build_api(create(), "t"), headers={"Authorization": "Bearer t"}, raise_server_exceptions=False)
def ask(rows, resamples):
    vectors = [[float(row % 7), float(row % 5)] for row in range(rows)]
    body = {"vectors": vectors, "labels": [row % 2 for row in range(rows)], "params": {"num_bootstrap": resamples}}
    answer = client.post("/probe", json=body)
    return answer.status_code, answer.json().get("error", {}).get("code")
limit_memory("prober", ["prober"], 1)
print(ask(40, 100), ask(2000, 24_000), ask(40, 100))
"""


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="with GPUs memory is watched, not limited by the kernel")
def test_a_request_that_needs_more_memory_fails_alone() -> None:
    limited = {**os.environ, "POOLBENCH_MEMORY_GIB_PROBER": "0.8"}
    command = [sys.executable, "-c", PROBER]
    done = subprocess.run(command, env=limited, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.strip() == "(200, None) (503, 'out_of_memory') (200, None)", done.stdout + done.stderr[-2000:]
