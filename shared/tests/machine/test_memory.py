"""A replica's memory is its own: what grows beyond its limit fails or ends, and nothing else does."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from poolbench.contracts.wire import SERVICES
from poolbench.errors import ConfigError
from poolbench.machine.memory import SHARES, is_out_of_memory, memory_limit, neighbours
from poolbench.settings import MemorySettings

GIB = 2**30


CHILD = """
import subprocess, sys, time
from poolbench.machine.memory import limit_memory

limit_memory("steerer", ["steerer"], 1)
child = subprocess.Popen([sys.executable, "-c", "import time; kept = bytearray(600 * 2**20); time.sleep(500)"])
print(child.wait(450))
"""

ITSELF = """
import time
from poolbench.machine.memory import limit_memory

limit_memory("steerer", ["steerer"], 1)
kept = bytearray(600 * 2**20)
time.sleep(500)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=600, check=False
    )


def test_an_engine_that_needs_more_memory_ends_and_the_replica_does_not() -> None:
    done = run(CHILD, POOLBENCH_MEMORY_GIB_STEERER="0.5")
    assert done.returncode == 0 and done.stdout.strip() == str(-signal.SIGKILL), done.stderr[-2000:]


def test_a_watched_replica_that_needs_more_memory_ends() -> None:
    done = run(ITSELF, POOLBENCH_MEMORY_GIB_STEERER="0.5")
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert "above the limit of 0.5" in done.stderr


def test_all_replicas_of_a_machine_fit_into_it() -> None:
    machine = 24 * GIB
    limits = [memory_limit(name, SERVICES, 2, MemorySettings(), machine) or 0 for name in SERVICES]
    assert 0.8 * machine < 2 * sum(limits) <= 0.85 * machine
    assert memory_limit("prober", ["prober"], 1, MemorySettings(), machine) == pytest.approx(0.85 * machine)
    assert set(SHARES) == set(SERVICES)


def test_settings_override_what_is_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    own = MemorySettings(memory_gib=23, memory_gib_prober=7.5)
    assert memory_limit("prober", SERVICES, 3, own) == int(7.5 * GIB)
    assert memory_limit("pooler", SERVICES, 1, own) == 3 * GIB
    for nothing in (MemorySettings(memory_gib=0), MemorySettings(memory_gib_prober=0)):
        assert memory_limit("prober", SERVICES, 1, nothing) is None
    for wrong in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("POOLBENCH_MEMORY_GIB", wrong)
        with pytest.raises(ConfigError, match="POOLBENCH_MEMORY_GIB is"):
            MemorySettings.load()


@pytest.mark.parametrize(
    ("offers", "shared", "expected"),
    [
        ({"a": dict.fromkeys(SERVICES, 16)}, False, (list(SERVICES), 4)),
        ({"a": {"prober": 16}, "b": {"prober": 1}, "c": {"pooler": 1}}, False, (["prober"], 2)),
        ({"a": {"prober": 1}, "c": {"pooler": 1}}, False, (["prober"], 1)),
        ({"a": {"prober": 16}, "c": {"pooler": 1}}, True, (list(SERVICES), 4)),
        ({"a": {}}, False, (list(SERVICES), 4)),
    ],
)
def test_who_shares_a_machine(offers: dict[str, dict[str, Any]], shared: bool, expected: Any) -> None:
    assert neighbours("prober", 4, "a", offers, shared=shared) == expected


def test_lack_of_memory_is_known_in_whatever_form_a_library_reports_it() -> None:
    torch_said = RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")
    assert all(is_out_of_memory(e) for e in (MemoryError(), torch_said, OSError(12, "Cannot allocate memory")))
    assert not any(is_out_of_memory(e) for e in (ValueError("out of memory"), RuntimeError("shapes differ")))
