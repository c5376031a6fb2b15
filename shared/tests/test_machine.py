"""What a replica says about its machine, its limit of memory, and folders that nodes must share."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from poolbench.contracts.wire import SERVICES
from poolbench.errors import ConfigError
from poolbench.machine import about
from poolbench.machine.memory import SHARES, is_out_of_memory, memory_limit, neighbours
from poolbench.machine.sharing import folder_ids, folders, require_shared
from poolbench.settings import ClusterSettings, MemorySettings
from poolbench.storage import Artifacts, open_store


@pytest.fixture(autouse=True)
def forgotten() -> None:
    about.accelerator.cache_clear()


def test_the_model_of_the_first_gpu_is_read_from_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "_NVIDIA", tmp_path)
    assert about.accelerator() == ""
    about.accelerator.cache_clear()
    for number, model in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA A100")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"IRQ: \t 7\nModel: \t\t {model}\n")
    assert about.accelerator() == "NVIDIA H100 80GB HBM3"


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


def test_an_engine_or_replica_that_needs_more_memory_ends() -> None:
    done = run(CHILD, POOLBENCH_MEMORY_GIB_STEERER="0.5")
    assert done.returncode == 0 and done.stdout.strip() == str(-signal.SIGKILL), done.stderr[-2000:]
    done = run(ITSELF, POOLBENCH_MEMORY_GIB_STEERER="0.5")
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert "above the limit of 0.5" in done.stderr


def test_all_replicas_of_a_machine_fit_into_it() -> None:
    machine = 24 * GIB
    limits = [memory_limit(name, SERVICES, 2, MemorySettings(), machine) or 0 for name in SERVICES]
    assert 0.8 * machine < 2 * sum(limits) <= 0.85 * machine
    assert memory_limit("prober", ["prober"], 1, MemorySettings(), machine) == pytest.approx(0.85 * machine)
    assert set(SHARES) == set(SERVICES)


def test_settings_override_what_is_derived() -> None:
    own = MemorySettings(memory_gib=23, memory_gib_prober=7.5)
    assert memory_limit("prober", SERVICES, 3, own) == int(7.5 * GIB)
    assert memory_limit("pooler", SERVICES, 1, own) == 3 * GIB
    for nothing in (MemorySettings(memory_gib=0), MemorySettings(memory_gib_prober=0)):
        assert memory_limit("prober", SERVICES, 1, nothing) is None


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


def cluster(root: Path) -> ClusterSettings:
    return ClusterSettings(str(root / "store"), f"filesystem://{root}/queue")


def test_nodes_that_share_a_folder_see_the_same_ids_also_at_the_same_time(tmp_path: Path) -> None:
    first = folder_ids(cluster(tmp_path))
    assert set(first) == {"store", "broker"} and len(set(first.values())) == 2
    assert folder_ids(cluster(tmp_path)) == first
    require_shared(cluster(tmp_path), first)
    folder_ids(cluster(tmp_path))
    assert list(Artifacts(open_store(str(tmp_path / "store"))).objects()) == []
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(folder_ids, [cluster(tmp_path / "new")] * 64))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("place", ["store", "broker"])
def test_another_folder_under_the_same_path_is_refused(tmp_path: Path, place: str) -> None:
    here = cluster(tmp_path)
    expected = folder_ids(here) | {place: "0" * 32}
    message = f"POOLBENCH_{place.upper()}: {folders(here)[place]} on .* all machines share"
    with pytest.raises(ConfigError, match=message):
        require_shared(here, expected)


def test_what_is_reached_over_the_network_is_not_compared(tmp_path: Path) -> None:
    settings = ClusterSettings("s3://poolbench", "redis://:secret@127.0.0.1:1/0")
    assert folder_ids(settings) == {}
    require_shared(settings, folder_ids(cluster(tmp_path)))
